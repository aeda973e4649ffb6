"""An error that needs no model is said before PyTorch is imported, which takes seconds."""

import json
import subprocess
import sys

import pytest

CODE = """
import contextlib, io, json, sys
cases, sys.argv = json.loads(sys.argv[1]), ["hf-posenc"]
from hf_posenc.cli import main
answers = []
for words in cases:
    sys.argv[1:] = words
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
    answers.append([code, errors.getvalue(), "torch" in sys.modules])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the commands are pointed at."""
    folder = tmp_path_factory.mktemp("early")
    rows = "".join(f"text {number},{'yes' if number % 2 else 'no'}\n" for number in range(20))
    (folder / "mine.csv").write_text("text,label\n" + rows)
    (folder / "latin.csv").write_bytes(b"text,label\ncaf\xe9,yes\n")
    (folder / "quote.csv").write_text('text,label\n"good,yes\n' + rows)
    two = "".join(f"a title {number},a longer body {number},{'xy'[number % 2]}\n" for number in range(20))
    (folder / "several.csv").write_text("title,body,label\n" + two)
    (folder / "unlabelled.csv").write_text("text,label\ngood,yes\nbad,\n")
    (folder / "run").mkdir()
    (folder / "run" / "results.json").write_text("{}")
    (folder / "run" / "config.json").write_text("{}")
    (folder / "file").write_text("")
    (folder / "plan.yaml").write_text("tasks: [halves]\nschemes: [rope]\noptions: {learnin_rate: 1}\n")
    return folder


TRAIN = ["train", "-o", "new", "--train-file", "mine.csv"]
COMPARE = ["compare", "-o", "compared", "--schemes", "rope,none", "--seeds", "1"]


CASES = [
    ([*TRAIN, "--learning-rat", "1"], "Unknown option '--learning-rat'. Did you mean --learning-rate?"),
    ([*TRAIN, "--adam-bet1", "1"], "Unknown option '--adam-bet1'. Did you mean --adam-beta1?"),
    ([*TRAIN, "--adam-beta1", "a"], "--adam-beta1: invalid float value: 'a'"),
    ([*TRAIN, "--adam-beta1", "2"], "--adam-beta1 2.0 is out of range. Give a number from 0 to below 1."),
    ([*TRAIN, "--optim", "adam"], "--optim: invalid choice: 'adam'"),
    ([*TRAIN, "--seed", "a"], "--seed: invalid int value: 'a'"),
    ([*TRAIN, "--max-steps", "0"], "--max-steps 0 is out of range. Give a whole number from 1, or -1 for none."),
    ([*TRAIN, "--task", "words"], "--task 'words' is unknown. Choose one of classification, regression."),
    ([*TRAIN, "--config-preset", "huge"], "--config-preset 'huge' is unknown. Choose one of tiny, mini, small, base."),
    ([*TRAIN, "--hidden-dropout-prob", "2"], "--hidden-dropout-prob 2.0 is out of range. Give a probability from 0"),
    ([*TRAIN, "--max-seq-length", "2"], "--max-seq-length 2 is out of range. Give a whole number from 3."),
    ([*TRAIN, "--tokenizer-type", "words"], "--tokenizer-type 'words' is unknown. Choose one of wordpiece, bpe."),
    ([*TRAIN, "--position-embedding-kwargs", "{"], "--position-embedding-kwargs '{' is no JSON"),
    ([*TRAIN, "--position-embedding-type", "rop"], "--position-embedding-type 'rop' is unknown. Did you mean 'rope'?"),
    ([*TRAIN, "--position-embedding-type", "xPos"], "--position-embedding-type 'xPos': xPos (Sun et al. 2022"),
    ([*TRAIN, "--position-embedding-type", "nope"], "Did you mean 'none'?"),
    ([*TRAIN, "--scheme-file", "absent.py"], "--scheme-file 'absent.py' is no file."),
    ([*TRAIN, "--pretrained", "./nowhere"], "--pretrained './nowhere': there is no such folder."),
    ([*TRAIN, "--delimiter", ";"], "no column is called text or sentence"),
    ([*TRAIN, "--delimiter", "::"], "--delimiter '::' can't separate columns."),
    (["train", "--train-file", "mine.csv"], "--output-dir is missing. Name a folder"),
    (["train", "-o", "new"], "No data. Give --train-file"),
    (["train", "-o", "new", "--train-file", "absent.csv"], "'absent.csv' doesn't exist."),
    (["train", "-o", "new", "--dataset-name", "./absent"], "--dataset-name './absent': there is no such folder."),
    (["train", "-o", "run", "--train-file", "mine.csv"], "--output-dir 'run' already holds another run"),
    (["train", "-o", "file/run", "--train-file", "mine.csv"], "--output-dir 'file/run' can't be written to"),
    (["train", "-o", "new", "--train-file", "latin.csv"], "latin.csv, line 2 isn't UTF-8 text: "),
    (["train", "-o", "new", "--train-file", "quote.csv"], "quote.csv, line 2: a quote opens there"),
    (["train", "-o", "new", "--train-file", "several.csv"], "It has title ('a tit"),
    (["train", "-o", "new", "--train-file", "unlabelled.csv"], "Missing label in the train data: line 3 has none"),
    (["evaluate", "run", "-f", "latin.csv"], "latin.csv, line 2 isn't UTF-8 text: "),
    (["predict", "run", "-f", "quote.csv"], "quote.csv, line 2: a quote opens there"),
    ([*COMPARE, "--data", "latin.csv"], "latin.csv, line 2 isn't UTF-8 text: "),
    (["evaluate", "run", "-f", "absent.csv"], "'absent.csv' doesn't exist."),
    (["evaluate", "run", "--dataset-name", "./absent"], "--dataset-name './absent': there is no such folder."),
    (["evaluate", "run"], "Give the data: --file FILE"),
    (["evaluate", "./absent", "-f", "mine.csv"], "'./absent' doesn't exist."),
    (["evaluate", "run", "-f", "mine.csv", "--batch-siz", "1"], "No such option: --batch-siz"),
    (["predict", "run", "-f", "absent.csv"], "There is no file 'absent.csv'"),
    (["predict", "run", "-f", "mine.csv", "-o", "out.xlsx"], "--output 'out.xlsx' names no format that is written."),
    (["predict", "run", "text", "--format", "xml"], "'--format': 'xml' is not one of 'table', 'jsonl'."),
    (["predict", "./absent", "text"], "'./absent' doesn't exist."),
    ([*COMPARE, "--data", "absent.csv"], "'absent.csv' doesn't exist."),
    ([*COMPARE, "--data", "mine.csv", "--schemes", "rop"], "'rop' is unknown. Did you mean 'rope'?"),
    ([*COMPARE, "--data", "mine.csv", "--options", '{"learnin_rate": 1}'], "Did you mean 'learning_rate'?"),
    ([*COMPARE, "--data", "mine.csv", "--options", '{"max_steps": 0}'], "--max-steps 0 is out of range."),
    (
        ["compare", "-o", "run", "--data", "mine.csv", "--schemes", "rope,none"],
        "'run' holds no results of a comparison",
    ),
    (["compare", "-o", "file/x", "--data", "mine.csv", "--schemes", "rope,none"], "'file/x' can't be written to"),
    (["compare", "-o", "new", "--plan", "absent.yaml"], "There is no plan 'absent.yaml'."),
    (["compare", "-o", "new", "--plan", "plan.yaml"], "Did you mean 'learning_rate'?"),
]


@pytest.fixture(scope="module")
def answers(place):
    """Exit code, error lines, and whether PyTorch was imported by then, for each case; in one fresh process."""
    every = json.dumps([words for words, _ in CASES])
    done = subprocess.run([sys.executable, "-c", CODE, every], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join(words) for words, _ in CASES])
def test_an_error_without_a_model_needs_no_torch(answers, number):
    (code, errors, imported), message = answers[number], CASES[number][1]
    assert message in errors
    assert code == 2
    assert errors.count("Error:") == 1
    assert not imported
