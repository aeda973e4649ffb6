"""The examples: trainings of a classifier, a masked language model, and a labeller of words that starts from it."""

import contextlib
import io
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, EvalPrediction, pipeline

from hf_posenc import PosEncConfig, PosEncForSequenceClassification
from hf_posenc.data.tokenizer import train_tokenizer
from tests.support.common import write_csv, write_jsonl
from tests.support.training import ROOT, SIZES, TWO, assert_same_weights, command, in_processes, order_files, rows

TRAINER, LOOP, MLM, NER = (
    ROOT / "examples" / f"run_{name}.py" for name in ("classification", "classification_no_trainer", "mlm", "ner")
)
UV = ROOT / "examples" / "train_uv.py"
GUIDE = ROOT / "docs" / "training.md"
FEW = {"max_steps": 3, "use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 8}
SHORT = {"learning_rate": 1e-3, "max_length": 64, "num_train_epochs": 2, "per_device_train_batch_size": 16, "seed": 1}
SHORT |= {"use_cpu": True}


def words_of(options: dict[str, Any]) -> list[str]:
    """Options as a command line."""
    pairs = ((name, value if isinstance(value, list) else [value]) for name, value in options.items())
    return [str(word) for name, values in pairs for word in (f"--{name}", *values)]


def run_example(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """Runs a script in this process, as from a command line; returns what it printed."""
    monkeypatch.setattr("sys.argv", [str(path), *words_of(options)])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """160 training and 64 validation rows, and a tokenizer."""
    folder = tmp_path_factory.mktemp("labelled")
    train_tokenizer([row["text"] for row in rows("train", 160)], vocab_size=1000).save_pretrained(folder / "tokenizer")
    files = order_files(folder)
    splits = {"train_file": files["data"], "validation_file": files["validation"]}
    return {**splits, "tokenizer": str(folder / "tokenizer")}


@pytest.fixture(scope="module")
def pretrained(labelled: dict[str, str]) -> Path:
    """A classifier with both kinds of dropout, and with what a conversion and an earlier training noted."""
    tokenizer = AutoTokenizer.from_pretrained(labelled["tokenizer"])
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    sizes |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    notes = {"text_columns": ["subject", "body"], "text_separator": " ", "temperature": 2.0}
    sizes["task_specific_params"] = {"hf_posenc": notes, "hf_posenc_source": "bert"}
    folder = Path(labelled["tokenizer"]).with_name("pretrained")
    PosEncForSequenceClassification(PosEncConfig.from_size("tiny", **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def logits(folder: Path) -> torch.Tensor:
    """The answers of a checkpoint on 32 texts."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    texts = [row["text"] for row in rows("test", 32)]
    return model(**AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")).logits.detach()


@pytest.mark.parametrize(("path", "most"), [(TRAINER, 106), (LOOP, 155), (MLM, 120), (NER, 127)])
def test_an_example_stays_short_and_can_be_copied(path: Path, most: int) -> None:
    assert len(path.read_text().splitlines()) <= most
    assert "hf_posenc." not in path.read_text()  # no room of the package behind the names that it exports


@pytest.mark.parametrize("path", [TRAINER, LOOP])
def test_a_tokenizer_that_is_not_there_is_one_sentence_before_any_data_is_read(path, tmp_path, monkeypatch):
    options = {"train_file": "nothing.csv", "output_dir": tmp_path, "use_cpu": True}
    with pytest.raises(SystemExit, match="Name the tokenizer of a new encoder: --tokenizer google-bert/bert-base-unca"):
        run_example(path, monkeypatch, **options)
    for name in ("tokenizer", "model"):
        with pytest.raises(
            SystemExit, match=r"No tokenizer 'nobody/nothing' in a folder or, if that can be reached, on"
        ):
            run_example(path, monkeypatch, **options, **{name: "nobody/nothing"})


@pytest.mark.parametrize("scheme", [pytest.param("rope", marks=pytest.mark.slow), "t5"])  # t5 has rates of its own
def test_the_example_trains_the_model_that_the_command_trains(labelled, scheme, tmp_path, monkeypatch, run):
    """The guide says what to give the command, which unasked smooths labels, and chooses rates and weights."""
    said = re.search("end in its weights; to that end give it (.*?)[.] They", GUIDE.read_text(), re.DOTALL)
    assert said is not None
    asked = " ".join(re.findall("`(.*?)`", said[1])).split()
    assert len(asked) == 7
    run_example(TRAINER, monkeypatch, **labelled, **SHORT, scheme=scheme, output_dir=tmp_path / "example")
    options = {"learning_rate": 1e-3, "max_length": 64, "epochs": 2, "scheme": scheme, "save_strategy": None}
    options |= dict(zip(("data", "validation", "tokenizer"), labelled.values(), strict=True))
    options |= dict.fromkeys(SIZES)
    assert run("train", *command(tmp_path / "command", **options), *asked)[0] == 0
    trained, expected = logits(tmp_path / "example"), logits(tmp_path / "command")
    assert expected.std() > 0.1
    # A GPU sums a bias's gradient in another order each time.
    torch.testing.assert_close(trained, expected, atol=0.05 if torch.cuda.is_available() else 1e-6, rtol=0)


def test_both_classification_scripts_train_the_same_model(labelled, tmp_path, monkeypatch):
    options = {**labelled, **SHORT, "scheme": "t5", "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}
    run_example(TRAINER, monkeypatch, **options, output_dir=tmp_path / "trainer")
    printed = run_example(LOOP, monkeypatch, **options, output_dir=tmp_path / "loop")
    torch.testing.assert_close(logits(tmp_path / "loop"), logits(tmp_path / "trainer"), atol=1e-6, rtol=0)
    state = json.loads((tmp_path / "trainer" / "checkpoint-20" / "trainer_state.json").read_text())
    (accuracy,) = (
        entry["eval_accuracy"] for entry in state["log_history"] if entry.get("eval_accuracy") and entry["epoch"] == 2
    )
    assert f"epoch 2: accuracy {accuracy:.4f}" in printed


@pytest.mark.slow
def test_a_resumed_loop_ends_in_the_weights_of_one_that_never_stopped(labelled, pretrained, tmp_path, monkeypatch):
    """With dropout, whose masks follow from the state of the generator."""
    options: dict[str, Any] = {**labelled, **SHORT, "model": pretrained}
    run_example(LOOP, monkeypatch, **options, output_dir=tmp_path / "whole")
    first = tmp_path / "whole" / "checkpoint-1"
    run_example(LOOP, monkeypatch, **options, resume_from_checkpoint=first, output_dir=tmp_path / "resumed")
    assert_same_weights(tmp_path / "whole", tmp_path / "resumed")
    assert not (tmp_path / "resumed" / first.name).exists()  # it didn't begin anew


@pytest.fixture
def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the script on the stock Trainer up to the training; returns the Trainer."""
    made: list[Any] = []

    class Recorder(transformers.Trainer):
        def train(self, **_: Any) -> Any:
            made.append(self)

        def save_model(self, *_: Any, **__: Any) -> None:
            pass

    def call(**options: Any) -> Any:
        monkeypatch.setattr(transformers, "Trainer", Recorder)
        run_example(TRAINER, monkeypatch, **{**SHORT, **options}, output_dir=tmp_path / "run")
        return made[-1]

    return call


@pytest.mark.parametrize(
    ("kind", "labels", "names"),
    [
        ("csv", ["b", "a", "NA", "None"], ["NA", "None", "a", "b"]),
        ("csv", [10, 2, 9], ["2", "9", "10"]),
        ("csv", ["02", "01", "1", "10"], ["01", "1", "02", "10"]),
        ("json", [-1, 1, 10, 9], ["-1", "1", "9", "10"]),
        ("json", [True, False], ["False", "True"]),
        ("parquet", [1, 0], ["yes", "no"]),
    ],
)
def test_the_training_rows_number_the_labels_of_both_splits(labelled, set_up, kind, labels, names, tmp_path):
    def write(split: str, labels: list[Any]) -> str:
        data = datasets.Dataset.from_dict({"text": ["007"] * len(labels), "label": labels})
        if kind == "parquet":
            data = data.cast_column("label", datasets.ClassLabel(names=names))
        getattr(data, f"to_{kind}")(tmp_path / f"{split}.{kind}")
        return str(tmp_path / f"{split}.{kind}")

    files = {"train_file": write("train", labels), "validation_file": write("validation", labels[-1:])}
    trainer = set_up(**{**labelled, **files})
    assert trainer.model.config.id2label == dict(enumerate(names))
    assert trainer.model.config.label2id == {name: number for number, name in enumerate(names)}
    expected = labels if kind == "parquet" else [names.index(str(label)) for label in labels]
    assert [*trainer.train_dataset["labels"], *trainer.eval_dataset["labels"]] == [*expected, expected[-1]]
    assert trainer.train_dataset["input_ids"][0] == trainer.processing_class("007")["input_ids"]


def test_both_classification_scripts_read_alike() -> None:
    first, second = (re.search(r"^def read\(.*?^def ", path.read_text(), re.M | re.S) for path in (TRAINER, LOOP))
    assert first is not None
    assert second is not None
    assert first[0].split("\ndef ")[0] == second[0].split("\ndef ")[0]


def test_the_script_for_uv_keeps_labels_as_they_are_written(tmp_path, monkeypatch):
    labels = {"good": "01", "bad": "02", "no": "None", "any": "NA"}
    texts = [{"sentence": f"{word} film {n}", "labels": label} for n in range(4) for word, label in labels.items()]
    options = {"data": write_csv(tmp_path / "mine.csv", texts), "pretrained": "none", "epochs": 1}
    run_example(UV, monkeypatch, **options, output=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [*config["id2label"].values()] == ["01", "02", "NA", "None"]


@pytest.mark.parametrize("path", [TRAINER, LOOP, MLM, NER])
def test_what_an_earlier_training_noted_is_left_behind(path, labelled, pretrained, tmp_path, monkeypatch):
    """Its temperature and its columns; what the conversion noted stays."""
    words = [{"tokens": ["who", "slept"], "labels": ["A", "B"]}] * 8
    files = {"train_file": write_jsonl(tmp_path / "words.jsonl", words) if path == NER else labelled["validation_file"]}
    few = {"num_train_epochs": 1, "use_cpu": True} if path == LOOP else FEW
    few = few | ({} if path == NER else {"max_length": 48})
    run_example(path, monkeypatch, **few, **files, model=pretrained, output_dir=tmp_path / "run")
    assert path == NER or AutoTokenizer.from_pretrained(tmp_path / "run").model_max_length == 48
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["task_specific_params"] == {"hf_posenc_source": "bert"}


@pytest.mark.parametrize(
    ("known", "labels", "names"),
    [("ba", "ab", "ba"), ("abc", "ab", "ab"), ("ab", "abc", "abc")],  # the same labels; fewer and more, on a new head
    ids=["same", "fewer", "more"],
)
@pytest.mark.parametrize("path", [TRAINER, LOOP, NER])
def test_labels_keep_the_order_that_the_head_has(path, known, labels, names, labelled, tmp_path, monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(labelled["tokenizer"])
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "id2label": dict(enumerate(known))}
    kind: Any = transformers.AutoModelForTokenClassification if path == NER else AutoModelForSequenceClassification
    model = kind.from_config(PosEncConfig.from_size("tiny", **sizes, label2id={n: i for i, n in enumerate(known)}))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    examples = [{"text": "who slept", "tokens": ["who", "slept"], "label": name} for name in labels] * 4
    files = {"train_file": write_jsonl(tmp_path / "a.jsonl", examples)}
    if path == NER:
        examples = [{"tokens": row["tokens"], "labels": [row["label"]] * 2} for row in examples]
        files = dict.fromkeys(("train_file", "validation_file"), write_jsonl(tmp_path / "a.jsonl", examples))
    few = {"num_train_epochs": 1, "use_cpu": True} if path == LOOP else FEW
    options = {**few, **files, "learning_rate": 1e-9}
    run_example(path, monkeypatch, **options, model=tmp_path / "model", output_dir=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert list(config["id2label"].values()) == [*names]
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("model", "run"))
    head = next(name for name in before if re.fullmatch(r"classifier(\.out_proj)?\.weight", name))
    assert after[head].shape[0] == len(names)
    assert known != names or torch.allclose(before[head], after[head], atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["a", "b", "c"], {}, "The label 'c' is none of the training rows: a, b."),
        (["a", "", "b", "b"], {}, "The label '' is none of the training rows: a, b."),
        (["a", "b", "a"], {"text_columns": "body"}, "Current columns in the dataset: \\['text', 'label'\\]"),
        (["a", "b", "a"], {"label_column": "class"}, "Current columns in the dataset: \\['text', 'label'\\]"),
        (["a", "b", "a"], {"lora_rank": 8}, "--lora_rank trains updates of trained weights. Name a checkpoint with"),
    ],
)
def test_what_a_classification_cannot_use_is_refused(labelled, set_up, labels, options, message, tmp_path):
    texts = [{"text": f"who slept {number}", "label": label} for number, label in enumerate(labels)]
    files = {"train_file": write_csv(tmp_path / "a.csv", texts[:-1])}
    files |= {"validation_file": write_csv(tmp_path / "b.csv", texts[-1:])}
    with pytest.raises(ValueError, match=message):
        set_up(**{**labelled, **files, **options})


def test_two_columns_are_a_pair_and_a_tenth_is_held_out(labelled, set_up, tmp_path):
    texts = [row["text"] for row in rows("train", 20)]
    pairs = [{"a": text, "b": "karla slept", "class": number} for number, text in enumerate(texts)]
    options = {"train_file": write_jsonl(tmp_path / "a.jsonl", pairs), "tokenizer": labelled["tokenizer"]}
    trainer = set_up(**options, text_columns=["a", "b"], label_column="class")
    assert (len(trainer.train_dataset), len(trainer.eval_dataset)) == (18, 2)
    expected = [{**trainer.processing_class(row["a"], row["b"]), "labels": row["class"]} for row in pairs]
    assert sorted(map(str, expected)) == sorted(map(str, [*trainer.train_dataset, *trainer.eval_dataset]))


def test_low_rank_updates_are_merged_into_an_ordinary_checkpoint_and_pushed_once(
    labelled, pretrained, tmp_path, monkeypatch
):
    pushed: list[bool] = []
    monkeypatch.setattr(transformers.Trainer, "init_hf_repo", lambda *_, **__: None)
    push = lambda *_, **__: pushed.append((tmp_path / "run/config.json").is_file())  # noqa: E731
    monkeypatch.setattr(transformers.Trainer, "push_to_hub", push)
    options = {"model": pretrained, "lora_rank": 2, "learning_rate": 1e-2, "push_to_hub": True, "num_train_epochs": 1}
    run_example(TRAINER, monkeypatch, **{**labelled, **SHORT, **options}, output_dir=tmp_path / "run")
    assert pushed == [True]
    assert not (tmp_path / "run" / "adapter_config.json").exists()
    before, after = (load_file(folder / "model.safetensors") for folder in (pretrained, tmp_path / "run"))
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if re.search("classifier|(query|value).weight$", name)}
    config = transformers.AutoConfig.from_pretrained(tmp_path / "run")
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.0)
    assert logits(tmp_path / "run").isfinite().all()


@pytest.mark.slow
def test_two_processes_of_the_loop_end_in_the_model_of_one(labelled, tmp_path, monkeypatch):
    options = {**labelled, **SHORT, "num_train_epochs": 1}
    options["validation_file"] = write_jsonl(tmp_path / "held_out.jsonl", rows("validation", 61))  # no full batches
    alone = run_example(LOOP, monkeypatch, **options, output_dir=tmp_path / "one")
    two = {**options, "per_device_train_batch_size": 8, "output_dir": tmp_path / "two"}  # each has half of the batch
    together = in_processes([*TWO, str(LOOP), *words_of(two)])
    assert (tmp_path / "two" / "checkpoint-1/random_states_1.pkl").is_file()  # of the second process
    assert re.findall("accuracy .*", together) == re.findall("accuracy .*", alone)
    torch.testing.assert_close(logits(tmp_path / "two"), logits(tmp_path / "one"), atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("mlm")
    (folder / "texts.txt").write_text("".join(f"{row['text']}\n\n" for row in rows("train", 64)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        options = {"train_file": folder / "texts.txt", "scheme": "alibi", "vocab_size": 300, "max_length": 32}
        return folder, run_example(MLM, monkeypatch, **FEW, **options, output_dir=folder / "run")


def test_a_masked_language_model_fills_masks(language_model: tuple[Path, str]) -> None:
    folder, printed = language_model
    perplexity = float(printed.splitlines()[-1].removeprefix("Perplexity on held-out text: "))
    assert 100 < perplexity < 600  # of 300 tokens, hardly trained
    answers: Any = pipeline("fill-mask", str(folder / "run"))("who saw <mask>")
    assert len(answers) == 5
    assert transformers.AutoModel.from_pretrained(folder / "run").config.position_embedding_type == "alibi"


def test_all_schemes_get_the_same_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_jsonl(tmp_path / "texts.jsonl", [{"body": row["text"]} for row in rows("train", 64)])
    seen: list[Any] = []

    class Recorder(transformers.Trainer):
        def train(self, **_: Any) -> Any:
            batches = [batch["labels"].tolist() for batch in self.get_train_dataloader()]
            seen.append((batches, list(self.eval_dataset["input_ids"]), list(self.eval_dataset["labels"])))

        def evaluate(self, **_: Any) -> Any:
            return {"eval_perplexity": 1.0}

    monkeypatch.setattr(transformers, "Trainer", Recorder)
    for scheme in ("none", "learned"):
        options = {"train_file": data, "text_column": "body", "scheme": scheme, "vocab_size": 300, "max_length": 32}
        run_example(MLM, monkeypatch, **FEW, **options, output_dir=tmp_path / scheme)
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 8
    assert any(label != -100 for labels in seen[0][2] for label in labels)


def test_perplexity_counts_each_masked_token_once() -> None:
    script = runpy.run_path(str(MLM))
    sums = np.array([[4.0, 1.0], [3.0, 6.0]], dtype=np.float32)
    assert script["perplexity"](EvalPrediction(sums, sums))["perplexity"] == pytest.approx(np.e)


@pytest.mark.slow
def test_words_are_labelled_from_a_language_model(language_model, tmp_path, monkeypatch):
    words = [row["text"].split() for row in rows("train", 64)]
    examples = [{"tokens": row, "ner_tags": ["B-PER" if word == "who" else "O" for word in row]} for row in words]
    files = {"train_file": write_jsonl(tmp_path / "a.jsonl", examples)}
    files["validation_file"] = write_jsonl(tmp_path / "b.jsonl", examples[:8])
    options = {**FEW, **files, "model": language_model[0] / "run", "learning_rate": 1e-2, "max_steps": 40}
    assert "'eval_f1':" in run_example(NER, monkeypatch, **options, output_dir=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["id2label"] == {"0": "B-PER", "1": "O"}
    classify: Any = pipeline("token-classification", str(tmp_path / "run"), aggregation_strategy="first")
    assert [(group["start"], group["entity_group"]) for group in classify("dogs saw who slept")] == [(9, "PER")]


def test_what_is_cut_off_counts_as_missed() -> None:
    names, script = ["O", "B-A", "I-A"], runpy.run_path(str(NER))
    # Of the first text the last two words are cut off, an entity's end and an O; of the second a word has no token.
    whole = {"whole": [[1, 0, 1, 2, 0], [0, 1]], "read": [[0, 1, 2], [1]]}
    labels = np.array([[-100, 1, 0, 1, -100], [-100, 1, -100, -100, -100]])
    measured = script["scores"](names, whole, EvalPrediction(labels.clip(0), labels))
    assert measured == {"accuracy": 4 / 7, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3}


@pytest.mark.slow
def test_a_labeller_of_long_texts_says_what_it_cuts_and_finds_half_of_the_entities_at_most(
    language_model, tmp_path, monkeypatch
):
    words = ["who", *["saw"] * 60, "who"]
    examples = [{"tokens": words, "labels": ["B-PER" if word == "who" else "O" for word in words]}] * 32
    files = {name: write_jsonl(tmp_path / f"{name}.jsonl", examples) for name in ("train_file", "validation_file")}
    options = {**FEW, **files, "model": language_model[0] / "run", "learning_rate": 1e-2, "max_steps": 30}
    printed = run_example(NER, monkeypatch, **options, output_dir=tmp_path / "run")
    (said,) = (line for line in printed.splitlines() if line.startswith("Words that are cut off, and count as missed"))
    lost = json.loads(said.partition(": ")[2].replace("'", '"'))
    assert lost["train"] == lost["validation"] > 32 * 10
    assert "'eval_recall': 0.5" in printed


@pytest.mark.parametrize(
    ("labels", "odd"),
    [
        (["B-PER", "I-PER", "O"], None),
        (["NOUN", "X", "O"], None),
        (["B", "I", "O"], None),
        *[([odd, "O"], odd) for odd in ("-", "o", "b-per", "B_PER", "PER-B", "S-PER", "L-PER")],
        ([0, 1], 0),
    ],
)
def test_labels_that_the_scores_of_spans_would_miss_are_refused(labels, odd, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [{"tokens": ["a"] * len(labels), "labels": labels}] * 20)
    args = SimpleNamespace(train_file=str(file), validation_file=None, dataset_name=None)
    read = runpy.run_path(str(NER))["read"]
    if odd is None:
        assert read(args)[1] == {label: label for label in sorted(labels)}
    else:
        with pytest.raises(SystemExit, match=f"The label {odd!r} can't be scored. Give B-PER, I-PER and O, or"):
            read(args)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("B-A I-A O B-B", {("A", 0, 2), ("B", 3, 4)}),
        ("B-A B-A I-A", {("A", 0, 1), ("A", 1, 3)}),
        ("I-A I-A O I-B", {("A", 0, 2), ("B", 3, 4)}),
        ("B-A I-B I-B", {("A", 0, 1), ("B", 1, 3)}),
        ("O O", set()),
        ("B I I O B", {("", 0, 3), ("", 4, 5)}),
        ("I I O I", {("", 0, 2), ("", 3, 4)}),
        ("NOUN NOUN O", {("NOUN", 0, 1), ("NOUN", 1, 2)}),
        ("", set()),
    ],
)
def test_entities_are_those_of_conlleval(labels: str, expected: set[Any]) -> None:
    assert runpy.run_path(str(NER))["entities"](labels.split()) == expected


def test_an_entity_counts_only_whole() -> None:
    names = ["O", "B-A", "I-A", "B-B"]
    labels = np.array([[-100, 1, 2, 0, -100], [-100, 3, 0, -100, 1]])
    predicted = np.array([[0, 1, 0, 0, 1], [1, 3, 0, 3, 3]])
    whole = {"whole": [[1, 2, 0], [3, 0, 1]], "read": [[0, 1, 2], [0, 1, 2]]}
    measured = runpy.run_path(str(NER))["scores"](names, whole, EvalPrediction(predicted, labels))
    assert measured == pytest.approx({"accuracy": 4 / 6, "precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3})
