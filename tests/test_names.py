"""The names of 1.0: every public callable with its parameters, the commands beside them, and what errors call both."""

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer

import hf_posenc
from hf_posenc import cli, options

PACKAGE = Path(hf_posenc.__file__).parent
SIGNATURES = {
    "fit": "texts, labels, *, pretrained=None, scheme=None, problem_type=None, baselines=True, output=None, "
    "overwrite=False, **options",
    "load": "checkpoint, *, revision=None, trust_remote_code=False, backend=None, device=None",
    "train": "data, output, *, baselines=True, verbose=1, **options",
    "predict": "checkpoint, texts=None, *, text_pair=None, data=None, data_config=None, split=None, output=None, "
    "batch_size=64, windows=None, stride=None, threshold=None, top_k=None, calibrated=False, bf16=False, "
    "backend=None, device=None, revision=None, trust_remote_code=False, **reading",
    "evaluate": "checkpoint, data, *, data_config=None, split=None, errors=None, batch_size=64, windows=None, "
    "stride=None, device=None, revision=None, trust_remote_code=False, **reading",
    "compare": "data=None, *, output, plan=None, schemes=None, seeds=None, scheme_file=None, reference=None, "
    "size=None, pretrained=None, options=None, search=False, keep_models=False, dry_run=False, ray=False, "
    "**reading",
    "convert": "source, output=None, *, scheme=None, scheme_kwargs=None, scheme_file=None, rope_parameters=None, "
    "max_position_embeddings=None, extension=None, head=None, healing=None, eval_texts=None, revision=None, "
    "allow_pickle=False, allow_other_tokens=False, overwrite=False, measure=True, seed=42",
    "export": "checkpoint, output, *, to, quantize=None, evaluate=None, largest_drop=None, calibrate=None, "
    "overwrite=False, revision=None, trust_remote_code=False, **reading",
    "publish": "checkpoint, repo_id, *, private=None, create_pr=False, revision=None, token=None, "
    "commit_message='Upload a PosEnc model', license=None, language=None, dataset=None, dry_run=False, "
    "trust_remote_code=False",
    "plot": "source, output=None, *, max_positions=None, layer=None, size='mini', scheme_kwargs=None, "
    "scheme_file=None, revision=None, trust_remote_code=False",
    "check_scheme": "scheme, *, scheme_kwargs=None, only=None",
    "make_scheme": "config",
    "register_scheme": "scheme, name=None",
    "apply_rotary": "x, positions=None, *, start=0, rope_theta=10000.0, interleaved=False, scheme=None",
    "sinusoidal_table": "positions, dim, base=10000.0",
    "scale_position_learning_rates": "optimizer, model, position_rate=None, word_rate=1.0",
    "Healing": None,
    "PosEncClassifier": "*, windows=None, stride=None, baselines=False, verbose=0, **options",
    "PosEncRegressor": "*, windows=None, stride=None, baselines=False, verbose=0, **options",
}
"""The parameters of each public function, and of the classes that people make by hand."""
RESULTS = {
    "fit": "PosEncClassifier | PosEncRegressor",
    "load": "PosEncClassifier | PosEncRegressor",
    "train": "TrainingResult",
    "predict": "pd.DataFrame",
    "evaluate": "dict[str, Any]",
    "compare": "Comparison",
    "convert": "Conversion",
    "export": "ExportReport",
    "publish": "Publication",
    "plot": "Figure",
    "check_scheme": "CheckReport",
}
FUNCTION_OF = {"check": "check_scheme"}
"""Commands whose function has another name."""
NO_FUNCTION = {"schemes": "hf_posenc.SCHEMES", "report": "Comparison(folder).report()"}
"""Commands that only print what an attribute or a method gives."""
OF_THE_COMMAND = {
    "predict": {"as_json"},  # print JSON
    "evaluate": {"as_json"},
    # The fields of `healing`.
    "convert": {"heal", "max_steps", "max_length", "bf16", *options.READING} - {*options.OF_LABELS},
    "check": {"onnx", "scheme_file"},  # its check needs an export; `register_scheme` takes the file
}
"""Parameters that only the command has."""
OF_THE_FUNCTION = {
    "train": {"baselines", "options", "verbose"},
    "predict": {"reading"},
    "evaluate": {"reading"},
    "export": {"reading"},
    "compare": {"reading"},
    "convert": {"healing", "measure"},
    "publish": {"token"},  # never on a command line
}
"""Parameters that only the function has."""
COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "parameters"), SIGNATURES.items())
def test_a_public_function_has_these_parameters(name, parameters):
    signature = inspect.signature(getattr(hf_posenc, name))
    bare = [item.replace(annotation=inspect.Parameter.empty) for item in signature.parameters.values()]
    if parameters is not None:
        assert str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)) == f"({parameters})"
    if name in RESULTS:
        annotation = inspect.formatannotation(signature.return_annotation).strip("\"'")
        assert re.sub(r"\w+\.", "", annotation) == re.sub(r"\w+\.", "", RESULTS[name])


def test_every_public_function_stands_in_the_table():
    functions = {name for name in hf_posenc.__all__ if inspect.isfunction(getattr(hf_posenc, name))}
    assert functions <= SIGNATURES.keys()


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name[0].islower()])
def test_a_docstring_documents_each_parameter_and_names_public_errors(name):
    function = getattr(hf_posenc, name)
    doc = inspect.getdoc(function) or ""
    documented = re.findall(r"^    (\*{0,2}\w+(?:, \w+)*):", doc, re.MULTILINE)
    words = {word.strip("* ") for line in documented for word in line.split(",")}
    signature = inspect.signature(function)
    assert {*signature.parameters} <= words | {"options"}
    assert "Raises:" in doc
    raised = re.findall(r"^    (\w+): ", doc.partition("Raises:\n")[2], re.MULTILINE)
    builtin = {"ValueError", "TypeError", "KeyError", "NotImplementedError", "RuntimeError", "KeyboardInterrupt"}
    assert signature.return_annotation is None or re.search("Returns:|^Builds ", doc)
    assert {*raised} <= {*hf_posenc.__all__} | builtin


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_and_its_function_have_the_same_parameters_and_defaults(command):
    if command in NO_FUNCTION:
        return
    name = FUNCTION_OF.get(command, command)
    ours = {item.name: item.default for item in inspect.signature(getattr(hf_posenc, name)).parameters.values()}
    if ours.keys() & {"options", "reading"} and command in ("train", "predict", "evaluate", "export", "compare"):
        declared = {item.name: item.default for item in fields(options.Options)}
        left_out = {"predict": options.OF_LABELS, "compare": ("label_delimiter",)}.get(command, ())
        shared = declared.keys() if command == "train" else {*options.READING} - {*left_out}
        ours = {**{name: declared[name] for name in shared}, **ours}
    theirs = {item.name: item.default for item in COMMANDS[command].params if item.name != "help"}
    assert theirs.keys() - ours.keys() == OF_THE_COMMAND.get(command, set())
    assert ours.keys() - theirs.keys() == OF_THE_FUNCTION.get(command, set())
    missing = inspect.Parameter.empty
    differ = {
        option: (theirs[option], ours[option])
        for option in theirs.keys() & ours.keys()
        if ours[option] is not missing and (theirs[option] or None) != (ours[option] or None)
    }
    assert not differ


OPTION = re.compile(r"(?<![\w`-])--[a-z]")
SPEAKS_OF_COMMANDS = re.compile(r"`hf(-posenc)? [^`]*`")
ROOMS = [path for path in PACKAGE.rglob("*.py") if "cli" not in path.parts and path.name != "options.py"]


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_room_spells_an_option(path):
    """But in a whole command, between backquotes; comments aren't read."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert not [text for text in texts if OPTION.search(SPEAKS_OF_COMMANDS.sub("", text))]


def _named() -> set[str]:
    """All parameters that errors name."""
    named = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            given = [item.value for item in node.keywords if item.arg == "parameter"]
            if called == "spell":
                given += node.args[:1]
            named |= {item.value.partition(".")[0] for item in given if isinstance(item, ast.Constant) and item.value}
    return named


def test_what_errors_name_are_parameters():
    known = {item.name for command in COMMANDS.values() for item in command.params}
    for name in SIGNATURES:
        known |= {*inspect.signature(getattr(hf_posenc, name)).parameters}
    assert len(_named()) > 40
    assert _named() <= known
