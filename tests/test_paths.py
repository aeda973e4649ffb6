"""`~` is the home folder in each path that a command or a public function takes, and `-o=DIR` names no folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

import hf_posenc
from hf_posenc import SCHEMES, Comparison, cli, options
from tests.support.common import others_slow, tiny_classifier

SMALL = ["--max-steps", "1", "--no-bf16"]
INT8 = ["--to", "openvino", "--quantize", "int8", "--largest-drop", "1"]
ONE_RUN = ["--schemes", "none", "--seeds", "1", "--options", '{"max_steps": 1}']
OF_TRAINING = {
    "output": "--output=~/new",
    "data": "--data=~/d.csv",
    "validation": "--validation=~/e.csv",
    "test": "--test=~/f.csv",
    "pretrained": "--pretrained=~/model",
    "tokenizer": "--tokenizer=~/model",
    "scheme_file": "--scheme-file=~/mine.py",
}
COMMANDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "train": ([*SMALL, "--device", "cpu", "--scheme", "own_slope"], OF_TRAINING),
    "predict": ([], {"checkpoint": "~/model", "data": "--data=~/d.csv", "output": "--output=~/new.csv"}),
    "evaluate": ([], {"checkpoint": "~/model", "data": "--data=~/d.csv", "errors": "--errors=~/new.csv"}),
    "convert": (
        ["--scheme", "alibi", *SMALL],
        {"source": "~/model", "output": "--output=~/new", "heal": "--heal=~/d.csv"}
        | {"eval_texts": "--eval-texts=~/e.csv", "scheme_file": "--scheme-file=~/mine.py"},
    ),
    "export": (
        INT8,
        {"checkpoint": "~/model", "output": "--output=~/new", "evaluate": "--evaluate=~/e.csv"}
        | {"calibrate": "--calibrate=~/d.csv"},
    ),
    "compare": (
        ONE_RUN,
        {"output": "--output=~/new", "plan": "--plan=~/plan.yaml", "data": "--data=~/d.csv"}
        | {"scheme_file": "--scheme-file=~/mine.py", "pretrained": "--pretrained=~/model"},
    ),
    "report": ([], {"results": "~/new"}),
    "schemes": ([], {}),
    "plot": ([], {"source": "~/model", "output": "--output=~/new.png", "scheme_file": "--scheme-file=~/mine.py"}),
    "check": (["own_slope", "--only", "shapes"], {"scheme_file": "--scheme-file=~/mine.py"}),
    "publish": (["--repo-id", "me/mine", "--dry-run"], {"checkpoint": "~/model"}),
}
"""Words of each command, and each of its parameters that may be a path, as a shell leaves it."""
OTHERS = {
    *("license", "language", "dataset"),
    *(set(options.Options.__dataclass_fields__) - {*options.PATHS}),
    *("texts", "text_pair", "split", "as_json", "windows", "stride", "threshold", "top_k", "calibrated", "backend"),
    *("head", "rope_parameters", "max_position_embeddings", "extension", "allow_pickle", "to"),
    *(
        "quantize",
        "largest_drop",
        "schemes",
        "seeds",
        "reference",
        "options",
        "search",
        "keep_models",
        "dry_run",
        "ray",
    ),
    *("ray", "max_positions", "layer", "only", "onnx", "repo_id", "private", "create_pr", "commit_message"),
}
"""Parameters that are no paths."""
OWN = """
from hf_posenc import PositionScheme


class OwnSlope(PositionScheme):
    name = "own_slope"

    def embed(self, hidden_states, tokens):
        return hidden_states + tokens.positions[..., None].to(hidden_states.dtype) / 100
"""


QUICK = {"max_steps": 1, "bf16": False, "device": "cpu"}


def fitted() -> None:
    texts, files = [f"a film {number}" for number in range(40)], {"pretrained": "~/model", "tokenizer": "~/model"}
    hf_posenc.fit(texts, ["g", "b"] * 20, output="~/new", baselines=False, **files, **QUICK)


FUNCTIONS: dict[str, Callable[[], object]] = {
    "load": lambda: hf_posenc.load("~/model"),
    "fit": fitted,
    "train": lambda: hf_posenc.train("~/d.csv", "~/new", baselines=False, **QUICK),
    "predict": lambda: hf_posenc.predict("~/model", data="~/d.csv", output="~/new.csv"),
    "evaluate": lambda: hf_posenc.evaluate("~/model", "~/d.csv", errors="~/new.csv"),
    "register_scheme": lambda: hf_posenc.register_scheme("~/mine.py"),
}
"""Functions of Python that aren't what a command calls with its words as they are."""


def compared() -> None:
    """Makes a comparison at home."""
    hf_posenc.compare(Path("~/d.csv"), output="~/new", schemes="none", seeds=1, options={"max_steps": 1})
    assert Comparison("~/new").table.equals(Comparison(Path("~/new")).table)


def test_the_table_names_each_parameter_that_may_be_a_path():
    commands = get_command(cli.app).commands
    assert {*COMMANDS} == {*commands}
    for name, command in commands.items():
        assert {parameter.name for parameter in command.params} - {*COMMANDS[name][1]} <= OTHERS, name


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The home folder, with what the calls need; the working folder is another, in which nothing may appear."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("d", "e", "f"):
        rows = "".join(f"a good film {name}{number},g\na bad film {name}{number},b\n" for number in range(20))
        (folder / f"{name}.csv").write_text(f"text,label\n{rows}")
    tiny_classifier(folder / "model", [(folder / "d.csv").read_text()], ("b", "g"))
    (folder / "mine.py").write_text(OWN)
    (folder / "plan.yaml").write_text("schemes: [none]\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(folder))
    yield folder
    SCHEMES.pop("own_slope", None)
    assert [*elsewhere.iterdir()] == []


SLOW = ("compare", "report", "export", "convert")


@pytest.mark.parametrize("command", others_slow(SLOW, *(name for name in COMMANDS if name not in SLOW)))
def test_each_command_finds_and_writes_what_lies_at_home(command, home, run):
    words, paths = COMMANDS[command]
    if command == "export":
        pytest.importorskip("nncf")
    if command == "report":
        compared()
    code, _, err = run(command, *paths.values(), *words)
    assert code == 0, err
    for path in (word.rpartition("=")[2] for word in paths.values()):
        assert Path(path).expanduser().exists()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_function_finds_and_writes_what_lies_at_home(function, home):
    before = {*home.iterdir()}
    FUNCTIONS[function]()
    libraries = {home / name for name in ("__pycache__", ".cache", ".config")}  # where they keep fonts and settings
    assert [path.stem for path in {*home.iterdir()} - before - libraries] in ([], ["new"])


COMMANDS_OF_CLI = get_command(cli.app).commands
WITH_OUTPUT = [name for name, command in COMMANDS_OF_CLI.items() if any("-o" in p.opts for p in command.params)]


@pytest.mark.parametrize("command", WITH_OUTPUT)
def test_an_output_glued_to_an_equals_sign_is_refused(command, home, run):
    words, paths = COMMANDS[command]
    given = [word for name, word in paths.items() if name not in ("output", "out")]
    code, _, err = run(command, *given, *words, "-o=runs/x")
    assert code == 2
    assert err.strip().splitlines()[-1] == (
        "Error: -o=runs/x would write to '=runs/x'. Write -o runs/x, or --output=runs/x."
    )
