"""A refused command says why in one line, ends with 2 and leaves nothing; what options alone say needs no PyTorch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.common import tiny_classifier

CODE = """
import contextlib, io, json, os, sys
cases, sys.argv = json.loads(sys.argv[1]), ["hf-posenc"]
from hf_posenc.cli import main
before = sorted(map(str, os.walk(".")))
for words in cases:
    sys.argv[1:] = words
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
    changed = sorted(map(str, os.walk("."))) != before
    print(json.dumps([code, errors.getvalue(), "torch" in sys.modules, changed]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the commands are pointed at."""
    folder = tmp_path_factory.mktemp("early")
    rows = "".join(f"text {number},{'yes' if number % 2 else 'no'}\n" for number in range(20))
    (folder / "mine.csv").write_text("text,label\n" + rows)
    (folder / "latin.csv").write_bytes(b"text,label\ncaf\xe9,yes\n")
    two = "".join(f"a title {number},a longer body {number},{'xy'[number % 2]}\n" for number in range(20))
    (folder / "several.csv").write_text("title,body,stars\n" + two)
    (folder / "unlabelled.csv").write_text("text,label\ngood,yes\nbad,\n")
    (folder / "dicts.jsonl").write_text('{"text": {"a": 1}}\n')
    (folder / "deep.jsonl").write_text('{"text": "x", "y": {}}\n')
    (folder / "splits").mkdir()
    (folder / "splits" / "test.jsonl").write_text('{"text": "x"}\n')
    (folder / "run").mkdir()
    (folder / "run" / "results.json").write_text("{}")
    (folder / "run" / "config.json").write_text("{}")
    (folder / "file").write_text("")
    (folder / "plan.yaml").write_text("tasks: [halves]\nschemes: [rope]\noptions: {learnin_rate: 1}\n")
    tiny_classifier(folder / "model", ["a b"], ("no", "yes"))
    shutil.copytree(folder / "model", folder / "bare", ignore=shutil.ignore_patterns("tokenizer.json"))
    return folder


ROOT = str(Path(__file__).parents[2])
NEW = ["train", "-o", "new"]
TRAIN = [*NEW, "--data", "mine.csv"]
PREDICT = ["predict", "model", "--data"]
COMPARE = ["compare", "-o", "compared", "--schemes", "rope,none", "--seeds", "1", "--data"]

OPTIONS = [
    ([*TRAIN, "--learning-rat", "1"], "No such option: --learning-rat (Possible options: --learning-rate"),
    ([*TRAIN, "--seed", "a"], "Invalid value for '--seed': "),
    ([*TRAIN, "--set", "weight_decay"], "--set 'weight_decay' assigns nothing."),
    (["evaluate", "model"], "Missing option '--data'. `hf-posenc evaluate --help` lists what there is."),
    (["predict", "model", "-"], "'-' would be a text. Standard input is read by --data '-' --format 'txt', or of"),
    (["predict", "model", "text", "--backend", "tensorrt"], "'tensorrt' is not one of 'torch', 'onnx', 'openvino'"),
    (["train", "-o"], "Option '-o' requires an argument. `hf-posenc --help` lists"),
    (["--foo"], "No such option: --foo. `hf-posenc --help` lists what there is."),
    (["trian"], "No such command 'trian'. Did you mean 'train'? `hf-posenc --help` lists what there is."),
    ([*TRAIN, "e"], "Got unexpected extra argument(s) (e). `hf-posenc train --help` lists"),
]
"""Said before PyTorch is imported."""
KWARGS = ["--scheme", "rope", "--scheme-kwargs", '{"interleave": true}']
CUDA = [
    ([*TRAIN, "--device", "cuda"], "--device 'cuda' can't be trained on. This machine has cpu alone."),
    (["predict", "model", "a", "--device", "cuda"], ". Leave it out, or give --device 'cpu'."),
]
ON_LINUX = sys.platform == "linux"
POSITIONS = ["--scheme", "learned", "--set", "max_position_embeddings=32", "--max-length", "33"]
OTHERS = [
    (["predict", "model"], "Give texts to classify, or --data with a file (- for standard input), and not both."),
    (["predict", "model", "a", "b", "--text-pair", "c"], "--text-pair goes with exactly one text"),
    (["train", "--data", "mine.csv"], "--output is missing. Name a folder"),
    (NEW, "No data. Give --data"),
    ([*TRAIN, "--resume"], "--resume: 'new' holds no unfinished run."),
    (["train", "-o", "run", "--data", "mine.csv", "--overwrite"], "'run' holds config.json, results.json, and no"),
    (["train", "-o", "file/run", "--data", "mine.csv"], "'file/run' can't be written to: a file is in the"),
    ([*TRAIN, "--set", "optim=adam"], "--set optim=adam is out of range. Give an installed one of"),
    ([*TRAIN, "--set", "hidden_dropout_prob=2"], "hidden_dropout_prob=2 is out of range. A probability"),
    ([*TRAIN, "--scheme", "rop"], "--scheme 'rop' is unknown. Did you mean 'rope'?"),
    ([*TRAIN, "--scheme-file", "absent.py"], "'absent.py' is no file."),
    ([*TRAIN, "--pretrained", "./nowhere"], "There is no folder './nowhere'."),
    ([*TRAIN, "--pretrained", "bare", "--revision", "v1"], "--revision 'v1' is for a name on the Hub, and 'bare' is a"),
    ([*TRAIN, "--tokenizer", "./nowhere"], "--tokenizer './nowhere': there is no such folder."),
    ([*TRAIN, "--delimiter", ";"], "no column is called text or sentence"),
    ([*NEW, "--data", "absent.csv"], "'absent.csv' can't be read: No such file"),
    ([*NEW, "--data", "several.csv"], "such as --text-column 'body' and --label-column 'stars'."),
    ([*NEW, "--data", "unlabelled.csv"], "Missing label in the train data: line 3 has none"),
    ([*TRAIN, *KWARGS], "--scheme-kwargs '{\"interleave\": true}' is no argument of 'rope'. Did you mean"),
    ([*TRAIN, "--set", "hidden_size=33"], "hidden_size=33 isn't a multiple of num_attention_heads=2"),
    ([*TRAIN, "--set", "hidden_act=7"], "Field 'hidden_act' expected str, got int (value: 7)"),
    ([*TRAIN, "--set", "report_to=foo"], "Error: --set report_to=foo is out of range. Give none, all, or "),
    ([*TRAIN, "--set", "fsdp=true"], "Error: --set fsdp can't be set: the settings of accelerate give it"),
    ([*TRAIN, *POSITIONS], "--max-length 33 is too long: 'learned' has 32 positions. Repeat its table with --set max"),
    ([*TRAIN, "--pretrained", "bare"], "'bare': its tokenizer can't be read: "),
    ([*TRAIN, "--pretrained", "nobody/nothing"], "'nobody/nothing' is no folder, and couldn't be had from the Hub: "),
    *([] if torch.accelerator.is_available() else CUDA),
    *([(["train", "-o", "/sys/x", *TRAIN[3:]], "Writing to '/sys/x' failed: [Errno 1]")] if ON_LINUX else []),
    (["convert", "../nowhere", "-o", "new"], "There is no folder '../nowhere'."),
    ([*NEW, "--data", "a/b/c"], "--data 'a/b/c': there is no such folder."),
    (["predict", "~/nowhere", "a"], f"There is no folder {os.path.expanduser('~/nowhere')!r}."),
    (["plot", "model", "-o", "a.png", "--scheme-kwargs", "{}"], "--scheme-kwargs goes with a scheme's name"),
    (["plot", "nobody/nothing", "-o", "a.png"], "'nobody/nothing' is no folder, and couldn't be had from the Hub: "),
    (["plot", "rope", "-o", "a.jpg"], "--output 'a.jpg' names no format"),
    (["convert", "model", "-o", "new", "--scheme", "rpoe"], "--scheme 'rpoe' is unknown. Did you mean 'rope'?"),
    (["predict", "mine.csv", "a"], "There is no folder 'mine.csv'."),
    (["predict", ".", "a"], "'.' has no config.json. Give the folder of a checkpoint"),
    (["predict", "model", "--data", "-"], "'-' has an unknown suffix. Accepted: .csv, .tsv"),
    (["predict", "model", "a", "--device", "gpu"], "--device 'gpu' can't be used"),
    (["evaluate", "./absent", "--data", "mine.csv"], "There is no folder './absent'."),
    *(
        ([command, "model", "--data", name], message)
        for command in ("evaluate", "predict")
        for name, message in (
            ("absent.csv", "'absent.csv' can't be read: No such file"),
            ("./absent", "--data './absent': there is no such folder."),
            ("latin.csv", "'latin.csv' can't be read: 'utf-8' codec can't decode byte"),
            ("several.csv", "several.csv: no column is called text"),
        )
    ),
    (["predict", "model", "text", "--backend", "onnx"], "has no onnx/model.onnx"),
    (["predict", "model", "text", "--backend", "onnx", "--device", "cuda"], "runs on the processor, not on --device"),
    (["predict", "model", "text", "--json", "-o", "out.csv"], "--json prints the answers, --output writes them"),
    ([*PREDICT, "mine.csv", "-o", "out.tsv"], "names no format that is written. End it in .csv, .jsonl, .parquet."),
    ([*PREDICT, "mine.csv", "-o", "mine.csv"], "--output 'mine.csv' would be a file of the data that is"),
    ([*PREDICT, "splits", "-o", "splits/test.csv"], "--output 'splits/test.csv' would be a file of the data that is"),
    ([*PREDICT, "mine.csv", "-o", "file/new/out.csv"], "--output 'file/new/out.csv' can't be written to: a file is in"),
    (["evaluate", "model", "--data", "mine.csv", "--errors", "file/a.csv"], "'file/a.csv' can't be written to: "),
    ([*PREDICT, "dicts.jsonl"], "Column 'text' holds {'a': 1} in line 1, which is no text"),
    ([*PREDICT, "deep.jsonl", "-o", "out.parquet"], "'out.parquet' can't be written: Cannot write struct"),
    ([*COMPARE, "absent.csv"], "'absent.csv' can't be read: No such file"),
    ([*COMPARE, "mine.csv", "--options", '{"learnin_rate": 1}'], "Did you mean 'learning_rate'?"),
    ([*COMPARE, "mine.csv", "--options", '{"max_steps": 0}'], "--options '{\"max_steps\": 0}' is out of range."),
    ([*COMPARE, "mine.csv", "-o", "run"], "'run' holds no results of a comparison"),
    ([*COMPARE, "mine.csv", "-o", "file/x"], "'file/x' can't be written to"),
    (["compare", "-o", "new", "--plan", "absent.yaml"], "There is no plan 'absent.yaml'."),
    (["compare", "-o", "new", "--plan", "plan.yaml"], "Did you mean 'learning_rate'?"),
]
CASES = OPTIONS + OTHERS


@pytest.fixture(scope="module")
def answers(place):
    """Exit code, error lines, whether PyTorch was imported by then, and whether a file was made; in one process."""
    every = json.dumps([words for words, _ in CASES])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])}
    done = subprocess.run([sys.executable, "-c", CODE, every], cwd=place, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join(words) for words, _ in CASES])
def test_a_refused_command_says_one_line_and_leaves_nothing(answers, number):
    (code, errors, imported, changed), message = answers[number], CASES[number][1]
    assert message in errors
    assert code == 2
    assert sum(line.startswith("Error:") for line in errors.splitlines()) == 1
    assert "Traceback" not in errors
    assert not changed
    assert number >= len(OPTIONS) or not imported
