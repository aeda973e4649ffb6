"""What is the user's to correct is one line and code 2; anything else keeps its type, and says where to look."""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_posenc import Interrupted, PosEncConfig, PosEncForSequenceClassification, UserError, errors

TOKEN = "hf_thisIsNoRealTokenButLooksLikeOne"
SECRETS = {"that looks like one": TOKEN, "of the environment": "an odd token", "of the file": "saved-by-a-login"}


@pytest.fixture
def tokens(monkeypatch, tmp_path):
    """A sentence with each kind of token, as a server may repeat them."""
    (tmp_path / "token").write_text(SECRETS["of the file"])
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    return f"You sent 'Bearer {TOKEN}', {SECRETS['of the environment']} and {SECRETS['of the file']}."


def masks(text: str, *kept: str) -> bool:
    """Whether a text holds masks and, of the tokens, those alone that are kept."""
    return "hf_..." in text and {token for token in SECRETS.values() if token in text} == {*kept}


def test_no_token_is_quoted(tokens, monkeypatch):
    # Without HF_TOKEN the current token is that of the file; with it the file's isn't sent.
    assert masks(errors.one_line(ValueError(tokens)), SECRETS["of the environment"])
    monkeypatch.setenv("HF_TOKEN", f" {SECRETS['of the environment']}\n")
    assert masks(errors.one_line(ValueError(tokens)), SECRETS["of the file"])
    for text in ("hf_posenc_is_the_name_of_a_package_with_many_words", "hf_short", f"x{'y' * 40}"):
        assert errors.one_line(ValueError(text)) == text
    for text in (f"hf_oauth_{'a1' * 20}.b-c_d.e", f"hf_jwt_{'A' * 30}"):
        assert errors.one_line(ValueError(f"It was {text}.")) == "It was hf_...."


def test_a_token_file_that_cannot_be_read_hides_no_error(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path))  # a folder
    assert errors.one_line(ValueError("no room")) == "no room"


@pytest.mark.parametrize("variable", [None, "HF_POSENC_TRACEBACK"])
@pytest.mark.parametrize("kind", [RuntimeError, UserError, OSError])
def test_a_command_prints_no_token(kind, variable, tokens, run, monkeypatch):
    def fault():
        logging.getLogger("hf_posenc.x").warning(f"A server warns of {TOKEN}.")
        raise kind(tokens) from kind(f"at first {TOKEN}")

    if variable is not None:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("hf_posenc.schemes.describe.describe_schemes", fault)
    code, out, err = run("schemes")
    assert (code, out) == (2 if kind is UserError else 1, "")
    assert "A server warns of hf_...." in err
    assert masks(err, SECRETS["of the environment"])
    assert ("Traceback" in err) is (variable is not None)


def two_lines():
    raise RuntimeError("two\nlines")


def broadcast():
    return np.zeros(2) + np.zeros(3)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda: int("x1"), "ValueError: invalid literal for int() with base 10: 'x1'"),
        (lambda: {}["a"], "KeyError: 'a'"),
        (two_lines, "RuntimeError: two lines"),
    ],
)
def test_a_fault_that_is_not_the_users_keeps_its_type(fault, text, run, monkeypatch):
    monkeypatch.setattr("hf_posenc.schemes.describe.describe_schemes", fault)
    assert run("schemes") == (1, "", f"Error: {text} (HF_POSENC_TRACEBACK=1 shows where)\n")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("hf_posenc.schemes.plots._effects", "plot model -o x.png"),
        ("hf_posenc.schemes.conformance.check_scheme", "check rope"),
        ("hf_posenc.data.preparing.find_columns", "train -o run --data mine.csv"),
        ("hf_posenc.training.report.TrainingReport.assess", "train -o run --data mine.csv --max-steps 1 --device cpu"),
        ("hf_posenc.comparison.plan.Options.of", "compare -o compared --data mine.csv --schemes rope,none"),
    ],
)
def test_a_fault_in_the_middle_of_a_command_is_not_the_users(where, words, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"text {number},{'yes' if number % 2 else 'no'}\n" for number in range(20))
    Path("mine.csv").write_text("text,label\n" + rows)
    PosEncForSequenceClassification(PosEncConfig.from_size("tiny", vocab_size=9)).save_pretrained("model")
    monkeypatch.setattr(where, lambda *_, **__: broadcast())
    code, _, err = run(*words.split())
    assert code == 1
    last = err.strip().splitlines()[-1]
    assert "Error: ValueError: operands could not be broadcast together with shapes (2,) (3,)" in last
    assert last.endswith("(HF_POSENC_TRACEBACK=1 shows where)")


def test_messages_are_not_rewritten(run):
    path = "/data/--my_file.csv"
    assert errors.format_cli_error(UserError(f"{path!r} doesn't exist."))[0] == f"Error: '{path}' doesn't exist."
    assert f"Error: '{path}' can't be read: " in run("train", "-o", "x", "--data", path)[2]


@pytest.mark.parametrize("error", [UserError("no"), Interrupted("stopped")])
def test_one_of_several_processes_speaks(error, monkeypatch):
    lines = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        lines.append(errors.format_cli_error(error)[0])
    assert lines[0]
    assert not lines[1]


def test_a_fault_of_one_process_alone_names_it(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert errors.format_cli_error(RuntimeError("no room"))[0].startswith(
        "Error: process 1: RuntimeError: no room (HF_POSENC"
    )


def test_a_folder_of_an_owners_name_blocks_no_name_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "google" / "mine").mkdir(parents=True)
    assert not errors.is_local("google/bert_uncased_L-2_H-128_A-2")
    errors.check_local("--pretrained", "google/bert_uncased_L-2_H-128_A-2")
    assert errors.is_local("google/mine")
    for name in ("./google/bert", "google/bert/x", "~/google", "a folder", ".."):
        assert errors.is_local(name)


LIGHT = "import sys\nsys.argv = ['hf-posenc', '--version']\n"
"""A process in which hf_posenc imports transformers where that is needed alone."""


def test_a_script_speaks_as_the_command_line_does(tmp_path):
    code = f"{LIGHT}from hf_posenc.errors import *\nrun_script(lambda: int('x1'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.split(":")[1].strip()) == (1, "ValueError")


ENDINGS = {
    "a script": "from hf_posenc.errors import run_script\nrun_script(lambda: None)",
    "a command": "from hf_posenc.cli import main\nmain()",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_process_of_several_leaves_its_group_before_it_ends(tmp_path, ending):
    code = f"""{LIGHT}import atexit, torch.distributed as group
group.init_process_group("gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1)
atexit.register(lambda: print("in a group:", group.is_initialized()))
{ending}"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "in a group: False"), done.stderr


@pytest.mark.parametrize(
    ("parameter", "value", "in_python", "on_the_command_line"),
    [
        ("scheme", "rpoe", "scheme='rpoe'", "--scheme 'rpoe'"),
        ("max_steps", 3, "max_steps=3", "--max-steps 3"),
        ("output", errors.NO_VALUE, "output", "--output"),
        ("overwrite", True, "overwrite=True", "--overwrite"),
        ("bf16", False, "bf16=False", "--no-bf16"),
        ("set.optim", "sgd", "set={'optim': 'sgd'}", "--set optim=sgd"),
        ("set.tf32", True, "set={'tf32': True}", "--set tf32=true"),
        ("set.optim", errors.NO_VALUE, "set={'optim': ...}", "--set optim"),
        ("scheme_kwargs", {"std": 1}, "scheme_kwargs={'std': 1}", "--scheme-kwargs '{\"std\": 1}'"),
        ("scheme_kwargs.std", 1, "scheme_kwargs={'std': 1}", "--scheme-kwargs '{\"std\": 1}'"),
        ("allow_pickle", True, "allow_pickle=True", "`hf-posenc convert --allow-pickle`"),
        ("verbose", 1, "verbose=1", "verbose=1"),
    ],
)
def test_a_parameter_is_spelt_as_its_reader_gives_it(request, parameter, value, in_python, on_the_command_line):
    assert errors.spell(parameter, value) == in_python
    assert str(UserError(": no.", parameter=parameter, value=value)) == f"{in_python}: no."
    request.getfixturevalue("spelt_by_train")
    error = UserError("is odd.", parameter=parameter, value=value)
    assert (str(error), error.parameter) == (f"{on_the_command_line} is odd.", parameter)
