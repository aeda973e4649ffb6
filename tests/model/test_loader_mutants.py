"""500 damaged or hostile checkpoints: each loads as it says or is refused in words; none crashes, hangs or grows."""

import copy
import json
import os
import re
import selectors
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from remote_code_harness import tiny_model

from hf_posenc import PosEncConfig

EXAMPLES = int(os.environ.get("HF_POSENC_MUTANTS", "500"))
SECONDS = 20
OLDER = "rope as of old"
SCHEMES = ("none", "learned", "lspe", "rope", OLDER, "t5", "fire", "deberta", "tupe+t5")
pytestmark = pytest.mark.slow
OPTIONS = settings(
    max_examples=EXAMPLES // 2,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
REFUSALS = {"ValueError", "OSError", "StrictDataclassError"}
"""What a caller may catch. A ValueError is ours, an OSError transformers'; wrong types are huggingface_hub's."""


class Loader:
    """A process that loads folders (see loader_process.py), started anew if it dies or hangs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = {scheme: root / scheme for scheme in SCHEMES}
        for scheme, folder in self.folders.items():
            tiny_model(scheme.split()[0], "PosEncForSequenceClassification").save_pretrained(folder)
            if scheme == OLDER:
                config = json.loads((folder / "config.json").read_text())
                theta = config.pop("rope_parameters")["rope_theta"]
                (folder / "config.json").write_text(json.dumps({**config, "rope_theta": theta}))
            for code in folder.glob("*.py"):  # the classes here are used
                code.unlink()
        self.process: subprocess.Popen[str] | None = None

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("loader_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        self.process = process
        assert self._read(120) == {"ready": True}
        first = self.ask(self.folders["rope"], auto=True)
        assert first["class"] == "PosEncForSequenceClassification"
        assert not first["wrong"]
        return process

    def _read(self, seconds: float) -> Any:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self.stop()
                raise AssertionError(f"Loading hangs: no answer in {seconds} s.")
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.process = None
            raise AssertionError(f"Loading ended the process with {code}.")
        return json.loads(line)

    def ask(self, folder: Path, auto: bool, seconds: float = SECONDS, **more: str) -> dict[str, Any]:
        process = self.process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"folder": str(folder), "auto": auto, **more}) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = self._read(seconds)
        return answer

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    process = Loader(tmp_path_factory.mktemp("mutants"))
    yield process
    process.stop()


def check_refusal(answer: dict[str, Any], what: str) -> None:
    """An error that a caller can catch, with a message."""
    kinds = set(answer["error"])
    mismatch = "RuntimeError" in kinds and "ignore_mismatched_sizes" in answer["message"]
    # AutoConfig looks into a map of code before any configuration class is asked.
    theirs = (
        "auto_map" in what and 'auto_map"]\n' in answer["traceback"] and "configuration_auto.py" in answer["traceback"]
    )
    assert kinds & REFUSALS or mismatch or theirs, f"{what}\n{answer['traceback']}"
    assert len(answer["message"]) > 10, what


def any_layer(text: str) -> str:
    """Names without the layers' numbers: transformers names those of several layers in one line, {0, 1}."""
    return re.sub(r"\.(\d+|\{[^}]*\})\.", ".*.", text)


def check_use(answer: dict[str, Any], what: str) -> None:
    """What was loaded has the file's weights, classifies as it says, and is the same again after it is saved."""
    assert answer["class"] == "PosEncForSequenceClassification", what
    assert not answer["wrong"], what
    assert answer["finite"], what
    said = [any_layer(line) for line in answer["warned"]]
    assert all(any(any_layer(name) in line for line in said) for name in answer["unexpected"]), what
    assert answer["labels"] == len(answer["config"].get("id2label") or "ab"), what
    assert answer["saved"], what


# ---- configurations -------------------------------------------------------------------------------------------------

WEIRD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 3, 7, 2**20, 2**24 + 1, 2**31, 2**63, -(2**63), 10**30]),
    st.sampled_from([0.0, -0.5, 0.5, 1.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]),
    st.sampled_from(["", "rope", "t5", "learned+t5", "none+rope", "gelu", "../../etc/passwd", "\x00", "x" * 9999, "1"]),
    st.text(max_size=8),
    st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(-2, 2), max_size=2),
    st.sampled_from([{"0": "x", "1": "y", "2": "z"}, {"1": "x", "2": "y"}, {"x": 0, "y": 1, "z": 2}, {"x": 0, "y": 0}]),
    st.sampled_from(
        ["float16", "torch.bfloat16", "eager", "sdpa", "nosuch", ["PosEncModel"], {"AutoModel": ["a", None]}]
    ),
    st.sampled_from(["{deep}", {"rope_type": "yarn", "factor": 4.0}, {"t5": {"num_buckets": 16}}, {"0": "a"}]),
)


KEYWORDS = (
    "id2label", "label2id", "num_labels", "problem_type", "dtype", "torch_dtype", "auto_map", "rope_scaling",
    "rope_theta", "partial_rotary_factor", "architectures", "quantization_config", "_attn_implementation",
    "attn_implementation", "is_decoder",
    "layer_types", "output_attentions", "output_hidden_states", "return_dict", "attribute_map", "_auto_class",
    "validate_sizes", "__class__", "base_model_tp_plan", "pruned_heads", "name_or_path", "chunk_size_feed_forward",
)  # fmt: skip
"""What other libraries, older versions or nobody at all write into a config file."""


def deep() -> Any:
    value: Any = 1
    for _ in range(50):
        value = [value]
    return value


@st.composite
def mutated_configs(draw: st.DrawFn) -> tuple[str, Callable[[dict[str, Any]], dict[tuple[str, ...], Any]]]:
    """A scheme, and what changes its configuration in place: returns what was set, by path."""
    scheme = draw(st.sampled_from(SCHEMES))
    count = draw(st.integers(1, 2))
    picks = [(draw(st.integers(0, 10**6)), draw(st.sampled_from("rrrrndakk")), draw(WEIRD), draw(st.text(max_size=6)))
             for _ in range(count)]  # fmt: skip

    def change(config: dict[str, Any]) -> dict[tuple[str, ...], Any]:
        done: dict[tuple[str, ...], Any] = {}
        for pick, how, value, name in picks:
            value = deep() if value == "{deep}" else copy.deepcopy(value)
            keys = sorted(config)
            key = keys[pick % len(keys)]
            if how == "a":
                config[name or "x"] = value
                done[(name or "x",)] = value
            elif how == "d":
                del config[key]
                done = {path: old_value for path, old_value in done.items() if path[0] != key}
            elif how == "n" and isinstance(config[key], dict) and config[key]:
                inner = sorted(config[key])[pick % len(config[key])]
                config[key][inner] = value
                done[(key, inner)] = value
            else:
                key = KEYWORDS[pick % len(KEYWORDS)] if how == "k" else key
                config[key] = value
                done = {path: old_value for path, old_value in done.items() if path[0] != key} | {(key,): value}
        return done

    return scheme, change


def says(loaded: Any, value: Any) -> bool:
    """Whether a loaded value is the given one, as JSON has it."""
    return bool(loaded == value or (loaded != loaded and value != value) or json.dumps(loaded) == json.dumps(value))


FIELDS = {*PosEncConfig.__annotations__, "id2label", "label2id", "problem_type"}
FILLED = {"position_embedding_kwargs", "rope_parameters", "posenc_version", "auto_map", "transformers_version"}
"""What is completed, or says only who wrote the file."""


@OPTIONS
@given(mutant=mutated_configs(), auto=st.booleans())
def test_a_mutated_configuration_is_obeyed_or_refused(
    loader: Loader, mutant: tuple[str, Callable[[dict[str, Any]], Any]], auto: bool
) -> None:
    scheme, change = mutant
    source, folder = loader.folders[scheme], loader.root / "config"
    config = json.loads((source / "config.json").read_text())
    done = change(config)
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    answer = loader.ask(folder, auto)
    what = f"{scheme}: {str(done)[:300]} -> {str(answer)[:2000]}"
    if "error" in answer:
        check_refusal(answer, what)
        return
    check_use(answer, what)
    labels = done.get(("num_labels",))
    assert labels is None or answer["labels"] == labels, what
    rope = answer["config"]["rope_parameters"] or {}
    for name, value in {path[0]: value for path, value in done.items() if len(path) == 1}.items():
        if name in ("rope_theta", "partial_rotary_factor") and value is not None:
            assert says(rope.get(name), value), what
        elif name == "rope_scaling":
            assert all(says(rope.get(key), entry) for key, entry in (value or {}).items() if entry is not None), what
    for path, value in done.items():
        if path[0] not in FIELDS or (value is None and path[0] != "hidden_size"):
            continue
        if path[0] in FILLED and len(path) == 1:
            continue
        if path[0] in ("id2label", "label2id") and any("contradict each other" in line for line in answer["warned"]):
            continue
        loaded = answer["config"]
        for key in path:
            loaded = loaded.get(key) if isinstance(loaded, dict) else None
        assert says(loaded, value), f"{path} was given as {value!r} and is {loaded!r}\n{what}"


@settings(OPTIONS, max_examples=max(1, EXAMPLES // 10))
@given(st.sampled_from(SCHEMES), st.integers(0, 2000), st.binary(max_size=6), st.integers(0, 8))
def test_a_config_file_with_damaged_bytes_is_refused_or_read(
    loader: Loader, scheme: str, place: int, put: bytes, cut: int
) -> None:
    source, folder = loader.folders[scheme], loader.root / "bytes"
    text = (source / "config.json").read_bytes()
    place %= len(text)
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / "config.json").write_bytes(text[:place] + put + text[place + cut :])
    answer = loader.ask(folder, auto=False)
    if "error" in answer:
        check_refusal(answer, f"{text[:place][-20:]!r} {put!r} {cut}: {str(answer)[:2000]}")
    else:
        check_use(answer, str(answer)[:2000])


# ---- headers of safetensors files -----------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, -1, 2, 31, 33, 64, 2**31, 2**40, 2**63, 2**64, 10**30, 1.5, "1", None])
DTYPES = st.sampled_from(["F16", "BF16", "F64", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F4", "X", "", 3, None])


@st.composite
def mutated_files(draw: st.DrawFn) -> tuple[str, Callable[[bytes], bytes], str]:
    """A scheme, and what changes its weights' file."""
    scheme = draw(st.sampled_from(SCHEMES))
    kind = draw(
        st.sampled_from(
            ["length", "cut", "bytes", "dtype", "shape", "offsets", "rename", "remove", "repeat", "metadata", "extra",
             "type", "deep", "tail"]
        )
    )  # fmt: skip
    pick, size, number = draw(st.integers(0, 10**6)), draw(st.integers(0, 400)), draw(NUMBERS)
    dtype, put, other = draw(DTYPES), draw(st.binary(min_size=1, max_size=4)), draw(st.text(max_size=5))
    length = draw(st.sampled_from([0, 1, 7, 2**16, 2**27, 2**31, 2**40, 2**63, 2**64 - 1, -1, 1]))

    def change(content: bytes) -> bytes:
        (true,) = struct.unpack("<Q", content[:8])
        header, data = content[8 : 8 + true], content[8 + true :]
        if kind == "length":
            return struct.pack("<Q", length if length >= 0 else true + 1) + header + data
        if kind == "cut":
            return content[: pick % len(content)]
        if kind == "tail":
            return content + put
        if kind == "bytes":
            place = pick % len(header)
            header = header[:place] + put + header[place + len(put) :]
            return struct.pack("<Q", len(header)) + header + data
        entries = json.loads(header)
        names = sorted(name for name in entries if name != "__metadata__")
        name = names[pick % len(names)]
        entry = entries[name]
        if kind == "dtype":
            entry["dtype"] = dtype
        elif kind == "shape":
            axis = size % (len(entry["shape"]) + 1)
            entry["shape"][axis : axis + 1] = [number]
        elif kind == "offsets":
            entry["data_offsets"][size % 2] = number
        elif kind == "rename":
            entries[other] = entries.pop(name)
        elif kind == "remove":
            del entries[name]
        elif kind == "repeat":
            entries[name] = dict(entries[names[(pick + 1) % len(names)]])
        elif kind == "metadata":
            entries["__metadata__"] = {other: number} if size % 2 else number
        elif kind == "extra":
            entries[other or "x"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
            data += b"\0\0\0\0"
        elif kind == "type":
            entries[name] = number
        text = json.dumps(entries).encode()
        if kind == "deep":
            text = b"[" * (size * 200) + text
        return struct.pack("<Q", len(text)) + text + data

    return scheme, change, kind


@pytest.mark.promise("Bounds", "A damaged safetensors file is read as its header says, or refused")
@OPTIONS
@given(mutant=mutated_files(), auto=st.booleans())
def test_a_mutated_safetensors_file_is_read_as_it_says_or_refused(
    loader: Loader, mutant: tuple[str, Callable[[bytes], bytes], str], auto: bool
) -> None:
    scheme, change, kind = mutant
    source, folder = loader.folders[scheme], loader.root / "weights"
    content = (source / "model.safetensors").read_bytes()
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / "model.safetensors").write_bytes(change(content))
    answer = loader.ask(folder, auto)
    what = f"{scheme}, {kind}: {str(answer)[:3000]}"
    if "error" in answer:
        check_refusal(answer, what)
        return
    check_use(answer, what)
    if answer["left"]:  # weights that the file doesn't have start anew, and that is said
        assert any(name in line for name in answer["left"] for line in answer["warned"]), what
    assert kind != "cut", what


def test_what_the_tests_above_would_notice(loader: Loader) -> None:
    folder = loader.root / "seen"
    shutil.copytree(loader.folders["rope"], folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    for field, value in (("intermediate_size", 128), ("vocab_size", 2**28), ("num_hidden_layers", 2**12 + 1)):
        (folder / "config.json").write_text(json.dumps({**config, field: value}))
        check_refusal(loader.ask(folder, auto=False), f"{field}={value}")
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    assert loader.ask(folder, auto=False)["config"]["hidden_act"] == "relu"
    assert "MemoryError" in loader.ask(folder, False, misbehave="grow")["error"]
    with pytest.raises(AssertionError, match="Loading hangs"):
        loader.ask(folder, False, seconds=1, misbehave="hang")
    with pytest.raises(AssertionError, match="Loading ended the process with -6"):
        loader.ask(folder, False, misbehave="crash")
