"""Damaged files: a reader answers, or says which file is wrong; it ends, runs no code and gives no NaN.

Each test damages a file that is right, at random: bits, bytes and, in JSON, values. The damages are the same in every
run. With `HF_POSENC_FUZZ_SECONDS=600` each test goes on for that long, with new ones.
"""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from hf_posenc import Comparison, PosEncConfig, PosEncForSequenceClassification, UserError
from hf_posenc.comparison import read_plan
from hf_posenc.conversion.loading import load_source
from hf_posenc.data.columns import find_columns
from hf_posenc.data.preparing import prepare
from hf_posenc.data.sources import read
from hf_posenc.data.tokenizer import train_tokenizer
from hf_posenc.finetuning.prediction import answers_to, load_classifier
from hf_posenc.options import Options
from tests.support.comparison import made_up, toy

pytestmark = pytest.mark.slow
SECONDS = float(os.environ.get("HF_POSENC_FUZZ_SECONDS", "0"))
TOO_LONG = 30
"""Seconds in which a reader must have ended."""
TOO_MUCH = 4 * 2**30
"""Bytes that a reader may ask for, beside what the process has."""

VALUES = st.one_of(
    st.sampled_from([None, True, [], {}, "", "x", "\n", "$|`", [[]], {"a": {}}, "../x", "a" * 300]),
    st.sampled_from([0, -1, 1, 7, 10**6, 2**31, 10**12, 2**63, 10**30, 0.5, 1e-9, 1e308, math.nan, math.inf]),
    st.text(max_size=4),
)


@st.composite
def edited_bytes(draw, content):
    """A file with a few bytes changed, cut out, put in or doubled, or with its end lost."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = start + draw(st.sampled_from([0, 1, 1, 6, 40, len(content)]))
        content[start:end] = draw(st.one_of(st.binary(max_size=6), st.just(bytes(content[start:end]) * 2)))
    return bytes(content)


def places(value, path=()):
    """The ways to all values in JSON."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


@st.composite
def edited_json(draw, content):
    """A JSON file with a few values replaced, removed, doubled or put under another name."""
    value = json.loads(content)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(places(value))))
        if not path:
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(("replace", "replace", "remove", "double")))
        if how == "replace":
            parent[path[-1]] = draw(VALUES)
        elif how == "remove":
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.append(parent[path[-1]])
        else:
            parent[draw(st.text(max_size=4))] = parent[path[-1]]
    return json.dumps(value).encode()


def damaged(content, is_json=False):
    """All of these."""
    return st.one_of(edited_json(content), edited_bytes(content)) if is_json else edited_bytes(content)


@contextlib.contextmanager
def limited():
    """Ends what takes too long or too much memory, where the system can."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return
    import resource

    def stop(*_):
        raise TimeoutError(f"it took more than {TOO_LONG} s")

    before = signal.signal(signal.SIGALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + TOO_MUCH, hard))
    signal.setitimer(signal.ITIMER_REAL, TOO_LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def fuzz(strategy, read, names, examples):
    """Lets `read` read what the strategy makes: it may raise a ValueError or an OSError that holds one of the names."""

    def check(content):
        try:
            with limited():
                read(content)
        except (ValueError, OSError) as error:
            if isinstance(error, TimeoutError) or not any(name in str(error) for name in names):
                raise

    rules = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    if not SECONDS:
        settings(max_examples=examples, derandomize=True, **rules)(given(strategy)(check))()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        test = settings(max_examples=examples, **rules)(given(strategy)(check))
        seed(random.SystemRandom().getrandbits(64))(test)()


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A classifier; code lies in its folder, and its config names that."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer(["a b c d"], vocab_size=40)
    config = PosEncConfig.from_size(
        "tiny", vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        position_embedding_type="learned+rope", max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    PosEncForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.glob("*.py"):
        path.write_text("raise SystemExit('code of the checkpoint ran')")
    return folder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_files_of_a_checkpoint(checkpoint, tmp_path, name):
    """As conversion reads them, and as prediction does, which answers with finite numbers."""
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)

    def read(content):
        (tmp_path / name).write_bytes(content)
        errors = []
        for reader in (load_source, lambda folder: list(answers_to(load_classifier(folder), [("a b",)]))):
            try:
                reader(str(tmp_path))
            except ValueError as caught:
                errors.append(caught)
        if errors:
            raise errors[-1]

    content = (checkpoint / name).read_bytes()
    read(content)
    fuzz(damaged(content, is_json=name == "config.json"), read, [str(tmp_path)], 60)


# ---- data -----------------------------------------------------------------------------------------------------------

ROWS = [{"text": f'sentence {n}, ünd "so"', "label": "yes" if n % 2 else "no", "n": n / 2} for n in range(6)]


SAID = ["rows-", "olumn", "the train data", "label"]
"""What errors name: the file, or what was found in it."""


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".parquet", ".txt", ".jsonl.gz"])
def test_data(suffix, tmp_path):
    path = tmp_path / "rows"
    if suffix in (".csv", ".txt"):
        Dataset.from_list(ROWS).to_csv(path)
    elif suffix == ".parquet":
        Dataset.from_list(ROWS).to_parquet(path)
    else:
        Dataset.from_list(ROWS).to_json(path, lines=suffix != ".json", compression="gzip" if "gz" in suffix else None)
    content = path.read_bytes()
    file = tmp_path / f"rows-1{suffix}"

    def read_it(content):
        file.unlink(missing_ok=True)  # the one before may be mapped
        file.write_bytes(content)
        options = Options(data=str(file))
        tables = read(options)
        with contextlib.suppress(UserError):  # as predict reads them
            find_columns(tables["train"], options, needs_label=False).texts(tables["train"])
        prepare(tables, options)

    fuzz(damaged(content, suffix == ".json"), read_it, SAID, 32)


# ---- comparisons ----------------------------------------------------------------------------------------------------


def test_run(tmp_path):
    """A report leaves it out, or holds what it says."""
    plan = toy(schemes=["none", "rope"], seeds=2)
    results = made_up(tmp_path / "results", plan, lambda run, _: 0.5 + 0.1 * run.seed, majority=0.5)
    path = results / "runs" / "probes-rope-seed0.json"

    def read(content):
        path.write_bytes(content)
        comparison = Comparison(results)
        runs = comparison.table.dropna(subset="seed").groupby(["scheme", "seed"])
        assert ("probes-rope-seed0" in comparison.missing) == (runs.ngroups < 4)
        assert "nan" not in comparison.report().read_text()

    fuzz(damaged(path.read_bytes(), True), read, ["probes-rope-seed0.json"], 40)


def test_plan(tmp_path):
    path = tmp_path / "plan.yaml"
    text = """tasks: [probes, {data: cola, metric: matthews_correlation}]
schemes: [none, rope]
seeds: 2
train_length: 32
test_lengths: [32, 48]
reference: none
options: {learning_rate: 0.001}
scheme_kwargs: {rope: {}}
"""

    def read(content):
        path.write_bytes(content)
        read_plan(path)

    fuzz(damaged(text.encode()), read, ["plan", "task", "scheme", "seed", "reference", "rope", "option"], 60)
