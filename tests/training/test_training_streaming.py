"""Training data read while training: the same labels and numbers, an order that resumes, memory that doesn't grow."""

import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from training_harness import (
    ENVIRONMENT,
    LAUNCH,
    ROOT,
    TRAINER,
    assert_same_weights,
    command,
    copy_until,
    results,
    rows,
    script,
    train,
    write_jsonl,
)

from hf_posenc.data import train_tokenizer
from hf_posenc.finetuning import make_arguments, set_up
from hf_posenc.training import UserError

STREAMED: dict[str, Any] = {"streaming": True, "max_steps": 12, "do_eval": True, "save_strategy": None}


def stream(folder: Path, **options: Any) -> Any:
    """What training would be given."""
    values = {"do_train": True, "streaming": True, "max_steps": 5, "output_dir": str(folder), "vocab_size": 500}
    return set_up(*make_arguments(**{**values, **options}))


def examples(setup: Any, count: int) -> list[dict[str, Any]]:
    return list(islice(iter(setup.encoded["train"]), count))


# ---- what is trained on ---------------------------------------------------------------------------------------------


def test_a_stream_gives_the_numbers_of_a_whole_reading_pass_after_pass(order: dict[str, str], tmp_path: Path) -> None:
    whole = stream(tmp_path / "whole", **order, do_eval=True, streaming=False)
    read = stream(tmp_path / "read", **order, do_eval=True, shuffle_buffer_size=1)
    assert read.labels == whole.labels
    assert read.encoded["validation"].to_list() == whole.encoded["validation"].to_list()
    assert examples(read, 320) == whole.encoded["train"].to_list() * 2
    assert read.summary.examples["train"] == 160


def test_the_buffer_shuffles_each_pass_anew_and_by_the_seed(order: dict[str, str], tmp_path: Path) -> None:
    def passes(**options: Any) -> list[list[str]]:
        setup = stream(tmp_path, **order, **options)
        ids = [json.dumps(example["input_ids"]) for example in examples(setup, 320)]
        return [ids[:160], ids[160:]]

    first, second = passes(seed=1)
    assert sorted(first) == sorted(second)
    assert first != second
    assert passes(seed=1) == [first, second]
    assert passes(seed=2)[0] != first
    assert passes(seed=2, data_seed=1) == [first, second]
    near = passes(seed=1, shuffle_buffer_size=20)[0]
    in_order = passes(shuffle_buffer_size=1)[0]
    assert near != in_order
    assert sorted(near) == sorted(in_order)
    assert set(near[:10]) <= set(in_order[:30])  # what is drawn has been read


def test_a_data_set_that_names_its_labels_is_not_read_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["no", "yes", "maybe"]
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    part = Dataset.from_dict({"text": ["a b", "b a"] * 40, "label": [0, 1] * 40}, features=features)
    DatasetDict(train=part, validation=part, test=part).save_to_disk(tmp_path / "saved")

    def read_before(*_: Any) -> None:
        raise AssertionError("the data is read before")

    monkeypatch.setattr("hf_posenc.data.preparing.FirstReading", read_before)
    setup = stream(tmp_path / "run", dataset_name=str(tmp_path / "saved"), do_eval=True, tokenizer_name=None)
    assert setup.labels.names == tuple(names)
    assert setup.summary.examples["train"] is None
    assert {example["labels"] for example in examples(setup, 80)} == {0, 1}


def test_named_labels_spare_the_first_reading_and_others_end_the_run(order: dict[str, str], tmp_path: Path) -> None:
    setup = stream(tmp_path / "run", **order, class_names="unacceptable,acceptable", shuffle_buffer_size=1)
    assert setup.labels.names == ("unacceptable", "acceptable")
    assert setup.summary.examples["train"] is None
    expected = [("unacceptable", "acceptable").index(row["label"]) for row in rows("train", 160)]
    assert [example["labels"] for example in examples(setup, 160)] == expected
    late = write_jsonl(tmp_path / "late.jsonl", [*rows("train", 1500), {"text": "x", "label": "other"}])
    setup = stream(tmp_path / "run", train_file=late, class_names="unacceptable,acceptable", shuffle_buffer_size=1)
    with pytest.raises(UserError, match="The train data has the label 'other' .once, first in line 1501., which"):
        examples(setup, 1501)


def test_a_data_set_of_the_hub_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load(name: str, config: Any = None, **options: Any) -> Any:
        calls.append((name, options["streaming"]))
        parts = {"train": 40, "dev": 10}
        return datasets.IterableDatasetDict(
            {split: Dataset.from_list(rows("train", count)).to_iterable_dataset() for split, count in parts.items()}
        )

    monkeypatch.setattr("hf_posenc.data.splits.load_dataset", load)
    setup = stream(tmp_path / "run", dataset_name="me/huge", do_eval=True, max_train_samples=30)
    assert calls == [("me/huge", True)]
    assert setup.encoded["validation"].num_rows == 10
    assert len({json.dumps(example["input_ids"]) for example in examples(setup, 90)}) <= 30


# ---- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow  # three runs
def test_a_run_trains_evaluates_ten_times_and_resumes_to_the_same_weights(
    order: dict[str, str], tmp_path: Path
) -> None:
    options = {**order, **STREAMED, "score_test": True, "max_steps": 20, "save_total_limit": None}
    trained = train(tmp_path / "whole", **options)  # two passes
    assert {"train_loss", "eval_accuracy", "test_accuracy", "train_accuracy"} <= {
        *trained.metrics,
        *(name for entry in trained.history for name in entry),
    }
    steps = [entry["step"] for entry in trained.history if "eval_loss" in entry]
    assert steps == [*range(2, 21, 2), 20]  # and once more at the end
    assert [entry["step"] for entry in trained.history if "train_accuracy" in entry] == steps[:-1]
    assert results(tmp_path / "whole")["best"]["step"] in steps
    for step in (6, 14):  # in the first pass and in the second
        copy_until(tmp_path / "whole", tmp_path / f"from{step}", step)
        train(tmp_path / f"from{step}", **options, resume_from_checkpoint="true")
        assert_same_weights(tmp_path / "whole", tmp_path / f"from{step}")
    ended = train(tmp_path / "whole", **options, resume_from_checkpoint="true")
    assert "train_loss" not in ended.metrics
    other = write_jsonl(tmp_path / "other.jsonl", rows("train", 160))
    for changed in (
        {"shuffle_buffer_size": 5},
        {"seed": 3},
        {"per_device_train_batch_size": 4},
        {"max_train_samples": 40},
        {"train_file": other},
        {"do_eval": False},
        {"validation_file": None},
        {"streaming": False, "max_steps": -1},
    ):
        with pytest.raises(UserError, match="was trained with"):
            train(tmp_path / "from6", **{**options, **changed}, resume_from_checkpoint="true")


def test_steps_that_are_given_stay(order: dict[str, str], tmp_path: Path) -> None:
    kept = stream(tmp_path / "run", **{**order, **STREAMED, "eval_steps": 3, "logging_steps": 5}).training
    assert (kept.eval_steps, kept.save_steps, kept.logging_steps) == (3, 1, 5)


@pytest.mark.slow
def test_the_script_streams_and_one_cycle_counts_steps(
    order: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**order, **STREAMED, "do_predict": True, "one_cycle": True, "output_dir": tmp_path / "run"}
    assert script(TRAINER, monkeypatch, **options) == 0
    assert results(tmp_path / "run")["arguments"]["data"]["streaming"] is True
    assert len((tmp_path / "run" / "predictions.jsonl").read_text().splitlines()) == 64


@pytest.mark.promise("Numbers", "Two processes that stream take the batches of one")
@pytest.mark.slow
def test_two_processes_take_the_batches_of_one(order: dict[str, str], tmp_path: Path) -> None:
    options = {**order, **STREAMED, "hidden_dropout_prob": 0, "save_strategy": "no", "do_eval": False}
    train(tmp_path / "one", **options)
    words = command({**options, "output_dir": tmp_path / "two", "per_device_train_batch_size": 8})
    done = subprocess.run([*LAUNCH, str(TRAINER), *words], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    one_process, two_processes = results(tmp_path / "one"), results(tmp_path / "two")
    assert (one_process["processes"], two_processes["processes"]) == (1, 2)
    assert two_processes["metrics"]["train_loss"] == pytest.approx(one_process["metrics"]["train_loss"], rel=1e-4)


# ---- what can't be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": -1}, "--streaming needs --max-steps: a stream doesn't say how long it is"),
        ({"class_weights": "balanced"}, "--class-weights 'balanced' can't be with --streaming: they are scaled by"),
        ({"train_sampling_strategy": "group_by_length"}, "--train-sampling-strategy 'group_by_length' can't be"),
        ({"dataloader_num_workers": 2}, "--dataloader-num-workers 2 can't be with --streaming: one process reads"),
        ({"shuffle_buffer_size": 0}, "--shuffle-buffer-size 0 is out of range. Give a whole number from 1"),
        ({"do_train": False, "model_name_or_path": "x", "do_eval": True}, "there is no --do-train"),
        ({"streaming": False, "shuffle_buffer_size": 9}, "--shuffle-buffer-size 9 is for --streaming"),
        ({"streaming": False, "class_names": "a,b"}, "--class-names 'a,b' is for --streaming"),
        ({"max_eval_samples": 0}, "--max-eval-samples 0 is out of range. Give a whole number from 1"),
        ({"max_train_samples": -1}, "--max-train-samples -1 is out of range"),
        ({"class_names": "a,b,a"}, "--class-names 'a,b,a' names a label twice. Give each label of the data once"),
        ({"class_names": " , "}, "--class-names ' , ' names no label. Give each label of the data once"),
        ({"class_names": "a,b", "task": "regression"}, "--class-names a,b: the data is a regression"),
        ({"validation_split_percentage": 0, "do_eval": True, "validation_file": None}, "percentage 0 is out of range"),
        ({"label_column_name": "nothing"}, "The train data has no column 'nothing'"),
        ({"class_names": "yes,no"}, "The train data has the label 'unacceptable' .80 times, first in line 1., which"),
    ],
)
def test_what_a_stream_cannot_do_is_named(
    order: dict[str, str], tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        stream(tmp_path / "run", **{**order, **options})


def test_a_line_far_into_a_stream_is_named_when_it_is_reached(tmp_path: Path) -> None:
    """By what trains the tokenizer, and by training: no text there is looked at before."""
    lines = [json.dumps(row).encode() for row in rows("train", 1100)]
    lines[1049] = b'{"text": "caf\xe9", "label": "good"}'
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    names = "acceptable,unacceptable,good"
    files = {"train_file": str(tmp_path / "a.jsonl"), "do_eval": False, "class_names": names}
    with pytest.raises(UserError, match="a.jsonl, line 1050 isn't UTF-8 text"):
        stream(tmp_path / "run", **files)
    train_tokenizer(["who saw karla"], vocab_size=99).save_pretrained(tmp_path / "tokenizer")
    setup = stream(tmp_path / "run", **files, tokenizer_name=str(tmp_path / "tokenizer"))
    with pytest.raises(UserError, match="a.jsonl, line 1050 isn't UTF-8 text"):
        examples(setup, 1100)


def test_a_masked_language_model_does_not_stream(
    order: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**order, "streaming": "true", "max_steps": 5, "output_dir": tmp_path / "run"}
    assert script(ROOT / "examples" / "run_mlm.py", monkeypatch, **options) == 2
    assert "--streaming is for text classification" in capsys.readouterr().err


# ---- memory ---------------------------------------------------------------------------------------------------------

MEASURE = """
import resource, sys
from hf_posenc import cli
sys.argv = ["hf-posenc", *sys.argv[1:]]
try:
    cli.main()
except SystemExit as ended:
    assert not ended.code, ended.code
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def generate(path: Path, megabytes: int) -> str:
    """A file of random words."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(3, 9))) for _ in range(5000)]
    pages = [" ".join(draw.choices(words, k=150)) for _ in range(500)]
    size = row = 0
    with path.open("w") as file:
        while size < megabytes * 10**6:
            size += file.write(json.dumps({"text": f"{row} {pages[row % 500]}", "label": "xyz"[row % 3]}) + "\n")
            row += 1
    return str(path)


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = {}
    train_tokenizer(["a b c d e f g h i j k l m n o p " * 9]).save_pretrained(tmp_path / "letters")
    for megabytes in (10, 100):
        path = generate(tmp_path / f"{megabytes}.jsonl", megabytes)
        words = (
            f"train -o {tmp_path / str(megabytes)} --train-file {path} --streaming --max-steps 20 --max-seq-length 32"
        )
        words += f" --tokenizer-name {tmp_path / 'letters'} --shuffle-buffer-size 5000 --max-eval-samples 200"
        words += " --disable-tqdm true --bf16 false"
        words += " --config-overrides hidden_size=32,num_attention_heads=2,intermediate_size=64 --use-cpu true"
        environment = {**ENVIRONMENT, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *words.split()],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        peaks[megabytes] = int(done.stdout.split()[-1])
        assert results(tmp_path / str(megabytes))["summary"]["examples"]["train"] > megabytes * 500
    print(peaks)
    assert peaks[100] - peaks[10] < 30, peaks
