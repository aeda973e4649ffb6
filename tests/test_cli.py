"""The command line, run as a user runs it: what it prints, and one clear line with exit code 2 for bad input."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from common import SCHEMES, tiny_config
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from typer.main import get_command

import hf_posenc
from hf_posenc import POSITIONS, PRESETS, cli
from hf_posenc.finetuning import make_arguments, train_classifier
from hf_posenc.model.configuration_posenc import POSENC_VERSION
from hf_posenc.training import Interrupted, UserError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def refused(run):
    """Runs what ends with exit code 2; returns its one line."""

    def call(*arguments: str, **options) -> str:
        code, _, err = run(*arguments, **options)
        assert code == 2, err
        (line,) = [line for line in err.splitlines() if line.startswith("Error:")]
        assert "Traceback" not in err
        return line

    return call


@pytest.fixture
def predict(run):
    """Runs `predict`; returns its answers."""

    def call(folder, *arguments: str, **options) -> list[dict]:
        code, out, err = run("predict", str(folder), *arguments, "--format", "jsonl", **options)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return call


def copied(source: Path, target: Path, *left_out: str) -> None:
    """Copies the files of a checkpoint."""
    for path in source.iterdir():
        if path.is_file() and path.name not in left_out:
            (target / path.name).write_bytes(path.read_bytes())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A classifier trained for a moment on order alone, with a learned table."""
    folder = tmp_path_factory.mktemp("cli") / "order"
    options = {
        "dataset_name": "blimp_order",
        "output_dir": str(folder),
        "do_train": True,
        "max_train_samples": 64,
        "max_steps": 2,
        "vocab_size": 500,
        "max_seq_length": 48,
        "position_embedding_type": "learned",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    train_classifier(*make_arguments(**options))
    return folder


def test_version_is_the_package_s(run):
    code, out, _ = run("--version")
    assert (code, out) == (0, f"hf-posenc {POSENC_VERSION}\n")


HERE = "import sys\nsys.argv = ['hf-posenc', *sys.argv[1:]]\nfrom hf_posenc.cli import main\nmain()"
"""The console script."""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("train --position-embedding-type ro", {"rope"}),
        ("train --config-preset ", set(PRESETS)),
        ("check ", set(SCHEMES)),
    ],
)
def test_the_shell_completes_names(typed, expected):
    words = typed.split(" ")
    environment = {
        **os.environ,
        "_HF_POSENC_COMPLETE": "complete_bash",
        "COMP_WORDS": f"hf-posenc {typed}",
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([sys.executable, "-c", HERE], env=environment, capture_output=True, text=True)
    assert set(done.stdout.split()) == expected, done.stderr


def test_schemes_lists_every_scheme_with_its_parameters_and_length(run):
    code, out, _ = run("schemes")
    assert code == 0
    for scheme in SCHEMES:
        assert f"│ {scheme} " in out
    learned = next(line for line in out.splitlines() if line.startswith("│ learned "))
    assert "393,216" in learned
    assert "512" in learned


def test_predict_gives_probabilities_for_texts_pairs_files_and_standard_input(run, predict, checkpoint, tmp_path):
    rows = predict(checkpoint, "who saw karla", "karla saw who")
    assert [row["text"] for row in rows] == ["who saw karla", "karla saw who"]
    for row in rows:
        assert set(row["probabilities"]) == {"acceptable", "unacceptable"}
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert row["probabilities"][row["label"]] == max(row["probabilities"].values())
        assert next(iter(row["probabilities"])) == row["label"]
    (row,) = predict(checkpoint, "who saw karla", "--top-k", "1")
    assert row["probabilities"] == {row["label"]: pytest.approx(max(rows[0]["probabilities"].values()))}
    expected = pytest.approx(rows[0]["probabilities"])
    read = predict(checkpoint, "-f", "-", stdin='who saw karla\n{"text": "x"}\n')
    assert [row["text"] for row in read] == ["who saw karla", "x"]
    assert read[0]["probabilities"] == expected
    (tmp_path / "a.csv").write_text("sentence\nwho saw karla\n")
    (row,) = predict(checkpoint, "-f", str(tmp_path / "a.csv"), "--text-column-names", "sentence")
    assert row["probabilities"] == expected
    (pair,) = predict(checkpoint, "who saw karla", "--text-pair", "karla")
    assert pair["text_pair"] == "karla"
    assert pair["probabilities"] != expected
    code, out, _ = run("predict", str(checkpoint), "who saw karla")
    assert code == 0
    assert f"{max(rows[0]['probabilities'].values()):.3f}" in out


def test_answers_are_float32_unless_bfloat16_is_asked_for(run, refused, checkpoint):
    answers = {}
    for words in ((), ("--bf16", "true"), ("--bf16", "false")):
        code, out, err = run("predict", str(checkpoint), "who saw karla", "--format", "jsonl", *words)
        assert code == 0, err
        assert ("bfloat16 mixed precision" in err) == ("true" in words)
        answers[words] = json.loads(out)["probabilities"]["acceptable"]
    assert answers[()] == answers["--bf16", "false"] == pytest.approx(in_double(checkpoint, "who saw karla"), abs=1e-6)
    assert answers["--bf16", "true"] != answers[()]
    assert answers["--bf16", "true"] == pytest.approx(answers[()], abs=0.02)
    line = refused("predict", str(checkpoint), "x", "--bf16", "maybe")
    assert "'--bf16': 'maybe' is not one of 'true', 'false'. `hf-posenc predict --help`" in line


def in_double(checkpoint: Path, text: str) -> float:
    """The probability of `acceptable`, computed in float64."""
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).double()
    with torch.no_grad():
        logits = model(**AutoTokenizer.from_pretrained(checkpoint)(text, return_tensors="pt")).logits
    return logits.softmax(-1)[0, model.config.label2id["acceptable"]].item()


@pytest.fixture
def asked(monkeypatch):
    """The options of training of each run, none of which trains."""
    seen = []

    def stop(data, model, training, splits):
        seen.append(training)
        raise UserError("seen")

    monkeypatch.setattr("hf_posenc.finetuning.fine_tune", stop)
    return seen


@pytest.mark.parametrize("best", [torch.float32, torch.bfloat16])
def test_training_picks_bfloat16_where_the_machine_has_it_and_can_be_refused(run, asked, monkeypatch, tmp_path, best):
    monkeypatch.setattr("hf_posenc.machine.best_dtype", lambda device=None: best)
    data = ("--dataset-name", "blimp_order")
    for words in ((), ("--bf16", "false"), ("--bf16",), ("--use-cpu", "true")):
        run("train", "-o", str(tmp_path / "x"), *data, *words)
    assert [training.bf16 for training in asked] == [best == torch.bfloat16, False, True, False]


def test_train_evaluate_and_predict_work_together(run, refused, predict, tmp_path):
    rows = "".join(
        f"{text} {row},{label}\n" for row in range(20) for text, label in (("good film", "yes"), ("bad film", "no"))
    )
    (tmp_path / "mine.csv").write_text("text,label\n" + rows)
    data, out_dir = str(tmp_path / "mine.csv"), str(tmp_path / "run")
    code, out, err = run(
        *("train", "-o", out_dir, "--train-file", data, "--num-train-epochs", "8", "--position-embedding-type", "none"),
        *("--use-cpu", "true", "--disable-tqdm", "true", "--test-file", data),
    )
    assert code == 0, err
    assert "test_accuracy" in out
    code, out, _ = run("evaluate", out_dir, "--file", data, "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] == 1.0
    assert predict(out_dir, "bad film")[0]["label"] == "no"
    assert "already holds another run" in refused("train", "-o", out_dir, "--train-file", data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "./nowhere", "a"), "'./nowhere' doesn't exist. Give the folder of a checkpoint"),
        (("predict", __file__, "a"), "is a file. Give the folder of a checkpoint"),
        (("train", "-o"), "--output-dir: expected one argument. --help lists the options."),
        (("predict", "CHECKPOINT", "a", "--top-k", "x"), "Invalid value for '--top-k': "),
        (("quickstart", "-o"), "Option '-o' requires an argument. `hf-posenc --help` lists"),
        (("--foo",), "No such option: --foo. `hf-posenc --help` lists what there is."),
        (("trian",), "No such command 'trian'. "),
        (("predict", "CHECKPOINT"), "Give texts to classify, or --file"),
        (("predict", "CHECKPOINT", "a", "-f", "b"), "and not both"),
        (("predict", "CHECKPOINT", "a", "b", "--text-pair", "c"), "--text-pair goes with exactly one text"),
        (("predict", "CHECKPOINT", "a", "--device", "gpu"), "--device 'gpu' can't be used"),
        pytest.param(
            ("predict", "CHECKPOINT", "a", "--device", "cuda"),
            "can't be used: Torch not compiled with CUDA enabled. This machine has cpu alone.",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU"),
        ),
        (("train", "-o", "x", "--learning_rate", "5"), "--learning-rate 5.0 is out of range: AdamW moves each weight"),
        (("train", "-o", "x", "--baseline", "maybe"), "(case insensitive). --help lists the options."),
        (("train", "-o", "x", "--epochs", "3"), "Unknown option '--epochs'. Did you mean --num-train-epochs?"),
        (("train", "-o", "x", "e"), "Unknown option 'e'. --help lists the options."),
        (
            ("train", "-o", "x", "--lr-scheduler-type", "cosin"),
            "--lr-scheduler-type 'cosin' is unknown. Choose one of linear, cosine",
        ),
        (
            ("convert", "CHECKPOINT", "x", "--position-embedding-type", "rpoe"),
            "Error: --position-embedding-type 'rpoe' is unknown. Did you mean 'rope'?",
        ),
        (("quickstart", "-o", "x", "--schemes", "rop"), "Did you mean 'rope'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(refused, checkpoint, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*(str(checkpoint) if part == "CHECKPOINT" else part for part in arguments))


def test_a_damaged_checkpoint_is_one_line(refused, checkpoint, tmp_path):
    copied(checkpoint, tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused("predict", str(tmp_path), "text")


def test_a_checkpoint_without_its_tokenizer_is_one_whole_line(refused, checkpoint, tmp_path):
    copied(checkpoint, tmp_path, "tokenizer.json", "tokenizer_config.json")
    line = refused("predict", str(tmp_path), "text")
    assert "tokenizer" in line
    assert line.rstrip().endswith(".")


def test_ctrl_c_while_training_says_what_is_left(run, monkeypatch, tmp_path):
    def stopped(*args, **kwargs):
        raise Interrupted("the newest checkpoint is 'run/checkpoint-7'.")

    monkeypatch.setattr("hf_posenc.finetuning.fine_tune", stopped)
    code, _, err = run("train", "-o", str(tmp_path / "run"), "--dataset-name", "blimp_order")
    assert code == 130
    assert err.strip().splitlines()[-1] == "Interrupted: the newest checkpoint is 'run/checkpoint-7'."


def test_home_is_found_after_an_equals_sign_where_shells_leave_it(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a text\n")
    code, _, err = run("predict", str(checkpoint), "--file=~/texts.txt", "--output=~/out.csv")
    assert (code, (tmp_path / "out.csv").is_file()) == (0, True), err
    code, out, _ = run("predict", str(checkpoint), "a", "--text-pair=~/b", "--format=jsonl")
    assert json.loads(out)["text_pair"] == "~/b"
    code, _, err = run("train", "--output-dir=~/run", "--train-file=~/gone.csv")
    assert (code, str(tmp_path / "gone.csv") in err) == (2, True)
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("name", ["./nope", "../nope", "~/nope", "/nope/nope", "a/b/c", "a folder"])
@pytest.mark.parametrize(
    "words",
    [
        ("predict", "{}", "text"),
        ("convert", "{}", "out"),
        ("train", "-o", "out", "--dataset-name", "blimp_order", "--model-name-or-path", "{}"),
        ("train", "-o", "out", "--dataset-name", "blimp_order", "--tokenizer-name", "{}"),
        ("train", "-o", "out", "--dataset-name", "{}"),
    ],
    ids=lambda words: "_".join(words),
)
def test_a_wrong_folder_is_not_looked_up_on_the_hub(run, monkeypatch, tmp_path, name, words):
    def asked(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*(word.format(name) for word in words))
    assert code == 2, err
    last = err.strip().splitlines()[-1]
    assert repr(name) in last
    assert "doesn't exist" in last or "There is no folder" in last or "there is no such folder" in last


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_ctrl_c_while_importing_is_one_line():
    words = [sys.executable, "-X", "importtime", "-c", HERE, "schemes"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        for line in running.stderr:
            if line.rstrip().endswith(" typer.models"):
                break
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
    assert running.returncode == 130
    lines = [line for line in rest.splitlines() if not line.startswith("import time:")]
    assert lines == ["Interrupted: nothing was written."]


def test_evaluate_says_which_split_it_scores(run, refused, checkpoint, tmp_path):
    (tmp_path / "mine.csv").write_text("text,label\nwho saw karla,acceptable\nkarla who saw,unacceptable\n")
    code, out, err = run("evaluate", str(checkpoint), "--file", str(tmp_path / "mine.csv"))
    assert code == 0, err
    assert "mine.csv, as test data: 2 examples" in out
    assert "accuracy" in out
    assert "validation" not in out + err
    assert "eval_" not in out + err
    _, out, _ = run("evaluate", str(checkpoint), "--file", str(tmp_path / "mine.csv"), "--json")
    scores = json.loads(out)
    assert (scores["split"], scores["examples"]) == ("test", 2)
    assert scores["accuracy"] in (0, 0.5, 1)
    folder = tmp_path / "data"
    folder.mkdir()
    rows = "who saw karla,acceptable\nwho saw karla,unacceptable\n" * 7  # seven errors, whatever it answers
    for split in ("validation", "extra"):
        (folder / f"{split}.csv").write_text(f"text,label\n{rows}")
    code, out, err = run("evaluate", str(checkpoint), "--dataset-name", str(folder), "--split", "validation")
    assert code == 0, err
    assert "split 'validation': 14 examples" in out
    assert "results.json" not in out + err  # there is none
    (tmp_path / "bare.csv").write_text("text,gold\nwho saw karla,acceptable\n")
    line = refused("evaluate", str(checkpoint), "--file", str(tmp_path / "bare.csv"))
    assert "The test data has no column 'label'. It has 'text', 'gold': name one with --label" in line


def test_what_is_no_text_is_named(refused, checkpoint, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"who saw karla\n\xff\xfe\n")
    line = refused("predict", str(checkpoint), "-f", str(tmp_path / "a.txt"))
    assert "a.txt, line 2 isn't UTF-8 text: " in line
    line = refused("predict", str(checkpoint), "-f", "-", stdin="who \udcff")
    assert "standard input, line 1 isn't UTF-8 text: " in line


@pytest.mark.parametrize(("head", "task"), [("MaskedLM", "fill-mask"), ("TokenClassification", "token-classification")])
def test_a_model_that_labels_no_texts_is_left_to_its_pipeline(refused, tmp_path, head, task):
    getattr(hf_posenc, f"PosEncFor{head}")(tiny_config()).save_pretrained(tmp_path)
    message = f"{str(tmp_path)!r} holds PosEncFor{head}, which doesn't classify texts: use "
    message += f'pipeline("{task}", {str(tmp_path)!r}) of transformers.'
    for words in (("predict", str(tmp_path), "text"), ("evaluate", str(tmp_path), "--dataset-name", "blimp_order")):
        assert message in refused(*words)  # not with a random head
    with pytest.raises(UserError, match="of transformers"):
        hf_posenc.load(tmp_path)


COMMANDS = tuple(get_command(cli.app).commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Usage: hf-posenc" in out
    assert all(line.strip() for line in out.splitlines() if "<str>" in line)


@pytest.mark.parametrize("arguments", [(name, "--help") for name in COMMANDS] + [("schemes",)], ids=" ".join)
def test_no_name_is_cut_off_in_a_terminal_of_80_columns(run, arguments):
    _, out, _ = run(*arguments, columns=80)
    assert "…" not in out


@pytest.mark.parametrize("trust", [(), ("--trust-remote-code",)])
def test_a_plot_of_a_classifier_reports_no_weights_as_unexpected(run, checkpoint, tmp_path, monkeypatch, trust):
    warnings: list[str] = []
    monkeypatch.setattr(logging.getLogger("transformers.modeling_utils"), "warning", warnings.append)
    code, _, err = run("plot", str(checkpoint), "-o", str(tmp_path / "x.png"), *trust)
    assert (code, warnings) == (0, []), err
    assert (tmp_path / "x.png").is_file()


def test_check_prints_a_table_and_fails_where_a_scheme_does(run, refused, monkeypatch):
    code, out, _ = run("check", "alibi", "--only", "padding", "--only", "shift", "--kwargs", '{"learned": true}')
    assert code == 0
    assert "alibi(learned=True): 2 of 2 checks ran" in out
    assert "padding" in out
    assert "order" not in out
    monkeypatch.setattr(POSITIONS["alibi"], "shift_invariant", False)
    code, out, _ = run("check", "alibi", "--only", "shift")
    assert code == 1
    assert "1 failed" in out
    for arguments, message in (
        (("alibi", "--kwargs", "[1]"), "--kwargs '[1]' is no JSON object"),
        (("alibi", "--kwargs", "{x"), "--kwargs '{x' is no JSON (Expecting property name"),
        (("alibi", "--only", "paddings"), "checks: 'paddings' is no check. Choose from signature"),
        (("alib",), "Did you mean 'alibi'?"),
    ):
        assert message in refused("check", *arguments)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--output-dir", "x", "--bf16", "--seed", "3"), {"bf16": True, "seed": 3, "use_cpu": True}),
        (("-o", "x", "--bf16", "false", "--one-cycle"), {"bf16": False, "one_cycle": True}),
        (("-o", "x", "--resume-from-checkpoint"), {"resume_from_checkpoint": "true"}),
        (("-o", "x", "--resume_from_checkpoint", "true"), {"resume_from_checkpoint": "true"}),
        (("-o", "x", "--test_file=t.csv", "--bf16-full-eval", "false"), {"do_predict": True, "bf16_full_eval": False}),
        (("-o", "x", "--resume-from-checkpoint=y", "--overwrite-output-dir"), {"resume_from_checkpoint": "y"}),
        (("-o", "x", "--adam-beta1", "0.5", "--do-predict", "true"), {"adam_beta1": 0.5, "do_predict": True}),
        (("-o", "x", "--test-file", "t.csv"), {"do_train": True, "do_eval": True, "do_predict": True}),
        (("-o", "x", "--test-file", "t.csv", "--do-predict", "false"), {"do_train": True, "do_predict": False}),
        (("-o", "x", "--load-best-model-at-end", "false"), {"load_best_model_at_end": False, "score_test": True}),
    ],
)
def test_options_reach_training_as_transformers_writes_them(run, asked, monkeypatch, words, expected):
    monkeypatch.setattr("hf_posenc.finetuning.early.check_run", lambda *options: None)
    code, _, err = run("train", *words)
    assert (code, "seen" in err) == (2, True), err
    if expected.pop("use_cpu", False) and not torch.accelerator.is_available():
        assert asked[0].use_cpu
    assert {name: getattr(asked[0], name) for name in expected} == expected
