"""README and guides: every command and every code block runs and prints what stands below it; every link resolves."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import yaml
from transformers import BertConfig, BertModel

from hf_posenc import SCHEME_CHECKS, cli
from hf_posenc.comparison import read_plan
from model_cards.studies.parts import minilm_folder
from tests.support.common import BUILTIN
from tests.support.remote_code import tiny_tokenizer

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
README = PAGES["README.md"]
BLOCKS = {page: re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for page, text in PAGES.items()}
EXAMPLES = {
    page: re.findall(r"^```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    for page, text in PAGES.items()
}
MINILM, HERE = "sentence-transformers/all-MiniLM-L6-v2", minilm_folder()
EXAMPLES = {page: examples for page, examples in EXAMPLES.items() if examples}
COMMANDS = {
    page: [
        " ".join(line.split("  #")[0].split())
        for kind, block in blocks
        if kind == "bash"
        for line in block.replace("\\\n", " ").splitlines()
    ]
    for page, blocks in BLOCKS.items()
}
ALL_COMMANDS = list(dict.fromkeys(command for commands in COMMANDS.values() for command in commands))
RUN_ELSEWHERE = {
    "python -c .*": "test_the_rows_to_begin_with",
    "make (quickstart|test|gpu)": "targets, which are checked below",
    r"git clone https://example\.org/.*|pip install .*": "needs a network; the names are checked below",
    "hf-posenc plot .*": "tests/schemes/test_plots.py, which needs matplotlib",
    "hf-posenc (convert|export minilm|train .* xlmr-rope$).*": "tests/conversion/test_conversion_sources.py",
    "(torchrun|accelerate launch) .*": "tests/training/test_training_scale.py, with the same launchers",
    "hf-posenc export runs/mine .*": "tests/exporting/test_export_folder.py, test_export_int8.py",
    "hf-posenc predict runs/mine-openvino .*": "tests/inference/test_backends.py",
    "python examples/ray_predict.py .*": "tests/exporting/test_serving_ray.py",
    "python examples/serving/server.py .*": "tests/exporting/test_serving_server.py",
    "python examples/run_.*": "tests/finetuning/test_finetuning_examples.py",
    "python -m build --wheel|uv run .*": "tests/remote_code/test_remote_wheel.py, without uv",
    "hf-posenc (compare --plan quick|report) .*": "tests/comparison/test_comparison_cli.py, in a slow test",
    "hf-posenc compare --scheme-file .*": "tests/comparison/test_comparison_runs.py",
    "hf-posenc publish .*": "tests/hub/test_hub_publish.py, which has a Hub",
    "hf-posenc check .* --onnx": "tests/cli/test_cli.py, with another scheme",
    "hf-posenc .* (my_scheme.py|runs/recency .*)|python examples/own_scheme/.*": "tests/schemes/test_own_scheme.py",
    r"python -m model_cards\.studies\.(recipe|kept) .*": "tests/model_cards/test_recipe_study.py, parts of it",
    r"python -m model_cards\.studies\.long_inputs .*": "tests/conversion/test_conversion_long_inputs.py, parts of it",
    r"python -m model_cards\.studies\.(pretrain|early)\w+ .*": "tests/model_cards/test_pretraining_study.py, small",
    "hf-posenc compare .* --ray": "tests/comparison/test_comparison_ray.py",
}
"""Commands by their pattern, and the test that runs them."""
# The block that loads what the commands trained.
LOADS = """from transformers import pipeline

classify = pipeline("text-classification", "runs/mine", trust_remote_code=True)
"""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_and_every_command_is_run_by_a_test(page):
    kinds = [kind for kind, _ in BLOCKS[page]]
    assert PAGES[page].count("```") == 2 * len(kinds)  # none is indented, where it wouldn't be found
    assert set(kinds) <= {"bash", "python", "text", "yaml"}
    python = {block for kind, block in BLOCKS[page] if kind == "python"}
    assert max((len(line) for block in python for line in block.splitlines()), default=0) <= 100  # the site's width
    examples = EXAMPLES.get(page, [])
    assert python - {LOADS} == {code for code, _ in examples}
    assert kinds.count("text") == len(examples)
    for command in COMMANDS[page]:
        assert _runs_elsewhere(command) or command.startswith("hf-posenc "), command


def _runs_elsewhere(command):
    return any(re.fullmatch(pattern, command) for pattern in RUN_ELSEWHERE)


def test_every_option_that_a_command_names_is_one_and_the_plan_that_is_shown(run):
    (plan,) = [block for kind, block in BLOCKS["docs/comparing.md"] if kind == "yaml"]
    assert read_plan(yaml.safe_load(plan)).tested_groups == {"short": ("mine",)}
    for command in ALL_COMMANDS:
        if ours := re.search("(?:^hf-posenc|-m hf_posenc.cli) (.*)", command):
            assert run(*shlex.split(ours[1]), "--help")[0] == 0, command


def test_the_rows_to_begin_with(tmp_path):
    (command,) = [command for command in ALL_COMMANDS if command.startswith("python -c ")]
    (tmp_path / "hf_posenc").symlink_to(ROOT / "hf_posenc")  # a reader stands in the checkout
    subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=tmp_path, check=True)
    rows = pd.read_csv(tmp_path / "mine.csv")
    assert len(rows) == 1000
    assert {"text", "label"} <= {*rows}


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The folder of someone who follows the pages: files, and what stands for a model and a data set of the Hub."""
    rows = "text,label\n" + "".join(f"good film {row},yes\nbad film {row},no\n" for row in range(20))
    reviews = tmp_path / re.search(r"--data (\S+/\S+)", " ".join(ALL_COMMANDS)).group(1)
    reviews.mkdir(parents=True)
    for split in ("train.csv", "test.csv"):
        (reviews / split).write_text(rows)
    for name in ("mine.csv", "test.csv", "reviews.csv"):
        (tmp_path / name).write_text(rows)
    pretrained = tmp_path / re.search(r"--pretrained (\S+/\S+)", " ".join(ALL_COMMANDS)).group(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(tiny_tokenizer()), **sizes)).save_pretrained(pretrained)
    tiny_tokenizer().save_pretrained(pretrained)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    recipe = importlib.import_module("hf_posenc.training.recipe")
    monkeypatch.setattr(recipe, "LEAST", dict.fromkeys(recipe.LEAST, (1, 2, 2)))  # two epochs will do
    return tmp_path


def test_the_commands_work_as_written(reader, monkeypatch, capsys):
    """A comparison takes minutes: its runs are listed."""
    out = {}
    for command in ALL_COMMANDS:
        if _runs_elsewhere(command) or ("--plan practitioner" in command and "HF_POSENC_DATA" not in os.environ):
            continue
        words = shlex.split(command)
        monkeypatch.setattr(sys, "argv", [*words, *(["--dry-run"] if words[1] == "compare" else [])])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out[command], err = capsys.readouterr()
        assert not ended.value.code, f"{command}: {err}"
    (predicted,) = [json.loads(text) for command, text in out.items() if "--json" in command]
    assert predicted["label"] in ("yes", "no")
    (reviews,) = [text for command, text in out.items() if "cornell" in command]
    assert "accuracy" in reviews
    exec(LOADS, names := {})
    assert names["classify"]("good film")[0]["label"] in ("yes", "no")


RUN_BLOCKS = """
import contextlib, io, json, os, sys, traceback
printed = {}
for page, codes in json.load(sys.stdin).items():
    os.makedirs(page, exist_ok=True)
    with contextlib.chdir(page):
        for code in codes:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                try:
                    exec(code, {"__name__": "__main__"})
                except Exception:
                    traceback.print_exc(file=sys.stdout)
            printed.setdefault(page, []).append(out.getvalue())
print(json.dumps(printed))
"""


def runnable(page):
    """The examples of a page: without real weights not the one that starts from them."""
    return [(code, output) for code, output in EXAMPLES[page] if HERE is not None or MINILM not in code]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the Python blocks print, by page: one process, a folder for each page, own names for each block."""
    codes = json.dumps({page: [code for code, _ in runnable(page)] for page in EXAMPLES})
    folder = tmp_path_factory.mktemp("pages")
    if HERE is not None:  # in the place of its name on the Hub
        for page in (page for page in EXAMPLES if any(MINILM in code for code, _ in EXAMPLES[page])):
            (folder / page / MINILM).parent.mkdir(parents=True)
            (folder / page / MINILM).symlink_to(HERE)
    command = [sys.executable, "-c", RUN_BLOCKS]
    done = subprocess.run(command, input=codes, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


DECIMAL = r"\d*\.\d+"
NEAR = 0.02
"""Scores may differ so much from machine to machine."""


@pytest.mark.slow  # trains, converts and draws, page by page
@pytest.mark.parametrize("page", EXAMPLES)
def test_python_blocks_print_what_stands_below_them(page, printed):
    for got, (_, output) in zip(printed.get(page, []), runnable(page), strict=True):
        assert re.sub(DECIMAL, "", got) == re.sub(DECIMAL, "", output)
        scores, shown = ([float(number) for number in re.findall(DECIMAL, text)] for text in (got, output))
        assert scores == pytest.approx(shown, abs=NEAR)


def test_what_is_installed_is_what_the_project_is_called():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {re.split(r"[<>=]", name)[0] for name in [project["name"], *project["dependencies"], *extras["dev"]]}
    installed = re.findall(r"pip install (?:-e )?([^\s`]+)", " ".join(PAGES.values()))
    assert {name for name in installed if not name.startswith(('"', "."))} <= names
    assert all(f"`{name}`" in README for name in extras)


def test_the_messages_that_are_explained_are_in_the_code():
    code = "".join(path.read_text() for path in (ROOT / "hf_posenc").rglob("*.py"))
    stops = PAGES["docs/troubleshooting.md"].partition("## It stops")[2].partition("\n## ")[0]
    messages = re.findall(r"^\| (?!it says|---)(.*?) \|", stops, re.MULTILINE)
    assert len(messages) > 8
    assert [message for message in messages if message not in code] == []


def test_make_targets_in_the_documents_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for document in (*PAGES, "CONTRIBUTING.md"):
        named = set(re.findall(r"^make ([a-z-]+)", (ROOT / document).read_text(), flags=re.MULTILINE))
        assert named or document.startswith("docs/")
        assert named <= targets


def _anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


LINKED = [
    *PAGES,
    *("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *(str(path.relative_to(ROOT)) for folder in ("examples", "model_cards") for path in (ROOT / folder).rglob("*.md")),
]


@pytest.mark.parametrize("page", LINKED)
def test_relative_links_lead_to_a_file_and_a_heading(page):
    path = ROOT / page
    text = re.sub(r"^```.*?^```|`[^`]*`", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        target_path = path.parent / name if name else path
        assert target_path.exists(), target
        assert not anchor or anchor in _anchors(target_path.read_text()), target


def test_the_readme_names_every_scheme_once():
    table = README.partition("## Schemes")[2].partition("##")[0].replace("`position_embedding_type`", "")
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(BUILTIN)
    assert f"held to {len(SCHEME_CHECKS)} checks" in README
    assert len(README.splitlines()) < 95


WORKS = ("sst2", "sst2_sorted", "8x128")


def test_the_numbers_in_the_readme_are_those_of_the_tables():
    trained = (ROOT / "docs" / "pretrained-weights.md").read_text().partition("<!-- generated: long_inputs -->")[2]
    gains = r"^(?:\|[^|]+){3}\| [+-][\d.]+ \[(.+?), "  # over cutting, whatever the weights
    least = re.findall(gains, trained.partition("<!-- end -->")[0], re.MULTILINE)
    assert len(least) == 6
    assert ("[nothing was shown to beat cutting]" in README) == all(float(gain) < 0 for gain in least)
    page = (ROOT / "model_cards" / "pretraining.md").read_text().partition("<!-- generated: tasks -->")[2]
    tuned = {}
    for way in ("`rope`", "word pairs", "`none`"):
        (row,) = re.findall(rf"^\| {way} \|(.*)\|$", page, re.MULTILINE)
        tuned[way] = [cell.split()[0].lstrip("0") for cell in row.split("|")[1:6]]  # four tasks and their mean
    order = {way: scores[3] for way, scores in tuned.items()}
    assert f"(`rope` {tuned['`rope`'][4]}, word pairs {tuned['word pairs'][4]}; in `blimp_order` " in README
    assert f"`rope` {order['`rope`']}, word pairs {order['word pairs']}, no positions {order['`none`']}:" in README
    results = ROOT / "model_cards" / "results"
    amd, intel = (
        {
            (row["mode"], row["work"], row["dtype"]): row["ratio"]
            for path in results.glob(f"benchmark_on_{maker}-*.json")
            for row in json.loads(path.read_text())["rows"]
            if row["contender"] == "rope"
        }
        for maker in ("amd", "intel")
    )
    padded, *elsewhere = [[f"{of['training', work, 'float32']:.1f}" for of in (amd, intel)] for work in WORKS]
    assert f"{padded[0]} times as fast as transformers' BERT where batches are half padding (on an Intel" in README
    assert f"(on an Intel Xeon {padded[1]} times), {elsewhere[0][0]} to {elsewhere[1][0]} times elsewhere" in README
    assert all(amd_ratio == intel_ratio for amd_ratio, intel_ratio in elsewhere)
    whole, rounded = (f"{intel['inference', '8x128', dtype]:.2f}"[1:] for dtype in ("float32", "bfloat16"))
    alike = f"{intel['inference', 'sst2_sorted', 'bfloat16']:.2f}"[1:]
    said = f"On an Intel Xeon `rope` answers texts without padding at {whole} of BERT's speed, in bfloat16 at {rounded}"
    assert f"{said}, and sorted sentences in bfloat16 at {alike}" in README
    assert f"at {whole} of BERT's speed, in bfloat16 at {rounded}" in PAGES["docs/speed.md"]
    judged = json.loads((results / "benchmark_gpu.json").read_text())["targets"]
    short, mixed = (row["value"] for row in judged if "`bert`" in row["target"])
    for page in (README, PAGES["docs/gpus.md"]):
        assert f"{short:.2f}"[1:] + " of BERT's speed" in page
        assert f"{mixed:.1f} times" in page


def test_the_address_is_one_placeholder():
    """Until the repository is public; a release is refused with it."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert f"git clone {urls['Repository']} " in README
    assert f"repo_url: {urls['Repository']} " in (ROOT / "mkdocs.yml").read_text()
    assert f'"{urls["Documentation"]}"' in (ROOT / "examples/space/app.py").read_text()
