"""From a file to a checkpoint: what is learned, what lies in its folder, and the loss."""

import hashlib
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from rich.console import Console
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, pipeline

from hf_posenc import PosEncConfig, UserError, evaluate
from hf_posenc.checkpoints.keeper import is_model_file
from hf_posenc.data.labels import Labels
from hf_posenc.schemes.support import code_files
from hf_posenc.training.metrics import ClassificationLoss, loss_and_metrics, make_loss
from tests.support.common import others_slow, write_jsonl
from tests.support.training import read_jsonl, results, rows, train

pytestmark = pytest.mark.usefixtures("spelt_by_train")

PARADIGM = "existential_there_quantifiers_2"


def scored(folder: Path | str, data: str) -> dict[str, float]:
    """The metrics of a checkpoint that is loaded anew, on a file."""
    return {name: value for name, value in evaluate(folder, data, device="cpu").items() if isinstance(value, float)}


@pytest.fixture(scope="module")
def easy_order(tmp_path_factory):
    """One of the twelve paradigms, which an encoder learns in seconds; still no bag of words can."""
    folder = tmp_path_factory.mktemp("easy")
    for split in ("train", "test"):
        write_jsonl(folder / f"{split}.jsonl", [row for row in rows(split, 10**6) if row["paradigm"] == PARADIGM])
    return str(folder)


@pytest.fixture(scope="module")
def trained(easy_order, tmp_path_factory):
    """One run per scheme with the same seed, with validation data set aside."""
    folder = tmp_path_factory.mktemp("runs")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "save_strategy": None}
    options = {"data": easy_order, "learning_rate": 3e-3, "batch_size": 32, "validation_share": 0.1, **sizes}
    epochs = {"none": 1, "rope": 4}  # none never learns it
    return {name: train(folder / name, scheme=name, epochs=number, **options) for name, number in epochs.items()}


def test_rope_learns_order_and_none_stays_at_one_half(trained):
    accuracy = {scheme: run.report.metrics["test_accuracy"] for scheme, run in trained.items()}
    assert accuracy["none"] == pytest.approx(0.5, abs=0.01)
    assert accuracy["rope"] > accuracy["none"] + 0.35


def test_a_finished_run_holds_code_tokenizer_labels_card_and_results(trained, easy_order):
    run = trained["rope"]
    names = {path.name for path in run.output.iterdir()}
    code = set(code_files(PosEncConfig(position_embedding_type="rope")))
    others = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "README.md"}
    others |= {"results.json", "_trained_on.npy", "_files.json"}
    assert names - {"confusion_matrix.png"} == code | others  # no checkpoints, no pickles
    config = json.loads((run.output / "config.json").read_text())
    assert config["id2label"] == {"0": "acceptable", "1": "unacceptable"}
    assert config["problem_type"] == "single_label_classification"
    saved = results(run.output)
    assert saved["metrics"] == run.report.metrics
    assert saved["options"]["seed"] == 1
    assert saved["versions"]["transformers"]
    listed = json.loads((run.output / "_files.json").read_text())["files"]
    content = {name: (run.output / name).read_bytes() for name in names - {"_files.json"}}
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    assert all(is_model_file(run.output / name) for name in names)  # which are looked for before anything is read
    card = ModelCard.load(run.output / "README.md")
    assert (card.data.pipeline_tag, card.data.library_name) == ("text-classification", "transformers")
    metrics = {(entry.dataset_split, entry.metric_type): entry.metric_value for entry in card.data.eval_results}
    assert {entry.dataset_name for entry in card.data.eval_results} == {Path(easy_order).name}
    assert metrics["test", "accuracy"] == pytest.approx(run.report.metrics["test_accuracy"], abs=1e-4)
    assert metrics["validation", "f1"] == pytest.approx(run.report.metrics["eval_macro_f1"], abs=1e-4)
    assert "0. `acceptable`" in card.text


def test_results_agree_with_the_model_which_can_be_trained_further(trained, easy_order, tmp_path):
    run, test = trained["rope"], read_jsonl(f"{easy_order}/test.jsonl")
    classify = pipeline("text-classification", str(run.output), trust_remote_code=True)
    answers = classify([row["text"] for row in test])
    right = [answer["label"] == row["label"] for answer, row in zip(answers, test, strict=True)]
    assert np.mean(right) == pytest.approx(run.report.metrics["test_accuracy"])
    assert scored(run.output, f"{easy_order}/test.jsonl")["accuracy"] == run.report.metrics["test_accuracy"]
    more = train(tmp_path / "more", data=easy_order, pretrained=str(run.output), max_rows=64)
    assert more.report.metrics["test_accuracy"] > 0.8
    assert more.report.vocab_size == run.report.vocab_size


def test_the_report_counts_what_is_there(order, tmp_path):
    test = write_jsonl(tmp_path / "test.jsonl", [{**row, "text": "漢字"} for row in rows("train", 2)])
    run = train(tmp_path / "run", data=order["data"], test=test, scheme="learned", max_length=32, max_steps=1)
    texts = [row["text"] for row in rows("train", 160)]
    longer = sum(len(run.tokenizer(text)["input_ids"]) > 32 for text in texts)
    report = run.report
    assert report.parameters == sum(parameter.numel() for parameter in run.model.parameters())
    assert (report.positional_parameters, report.vocab_size) == (32 * 32, len(run.tokenizer))
    assert (report.examples, report.cut) == ({"train": 160, "test": 2}, {"train": longer, "test": 0})
    assert f"> {longer} of 160 train texts ({longer / 160:.1%}) have more than 32 tokens and were cut" in report.card()
    unknown = [doubt for doubt in report.doubts() if "[UNK]" in doubt]  # beside [CLS] and [SEP]
    assert [doubt.partition(":")[0] for doubt in unknown] == ["50.0% of the tokens of the test texts are [UNK]"]


def test_several_labels_per_text(tmp_path):
    words = ("who", "that", "only")
    examples = [
        {"text": row["text"], "label": [word for word in words if word in row["text"].split()]}
        for row in rows("train", 500)
    ]
    files = {"data": write_jsonl(tmp_path / "train.jsonl", examples[:400])}
    files["test"] = write_jsonl(tmp_path / "test.jsonl", examples[400:])
    run = train(tmp_path / "run", **files, epochs=4, learning_rate=3e-3)
    assert (run.report.problem_type, run.report.labels) == ("multi_label_classification", tuple(sorted(words)))
    assert run.report.calibration is None
    assert run.report.metrics["test_accuracy"] > 0.5
    assert scored(run.output, files["test"])["accuracy"] == run.report.metrics["test_accuracy"]


# ---- which weights are kept -----------------------------------------------------------------------------------------

OVERFIT = {"epochs": 4, "learning_rate": 2e-2, "seed": 3, "schedule": "constant", "warmup_steps": 0}
OVERFIT |= {"save_strategy": None, "bf16": False}  # evaluations in between are in the precision of the training


@pytest.mark.parametrize(
    ("given", "metric", "best"),
    [
        ({}, "eval_macro_f1", max),
        pytest.param({"load_best_model_at_end": False}, None, None, marks=pytest.mark.slow),
        pytest.param({"metric_for_best_model": "loss"}, "eval_loss", min, marks=pytest.mark.slow),
        ({"patience": 1, "epochs": 8}, "eval_loss", min),
    ],
    ids=["default", "last", "loss", "patience"],
)
def test_the_best_weights_are_kept(order, tmp_path, given, metric, best):
    text = StringIO()
    run = train(tmp_path / "run", Console(file=text, width=200), **order, **{**OVERFIT, **given})
    scores = [entry[metric or "eval_macro_f1"] for entry in run.report.history if "eval_macro_f1" in entry]
    expected = scores[-1] if best is None else best(scores)
    assert run.report.metrics[metric or "eval_macro_f1"] == pytest.approx(expected, rel=1e-4)
    assert max(scores) > scores[-1] or min(scores) < scores[-1]  # or this test would show nothing
    assert len(scores) < 8
    kept = results(tmp_path / "run")["best"]
    if best is None:
        assert kept is None
        return
    assert (kept["metric"], kept["value"], kept["epoch"]) == (metric, expected, scores.index(expected) + 1)
    said = f"Kept the weights of epoch {kept['epoch']:g} (step {kept['step']}), the best by {metric}"
    assert said in text.getvalue()
    assert f"best by {metric}: epoch {kept['epoch']:g}" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize("bf16", others_slow([True, False], True))
def test_final_scores_are_float32_and_those_of_an_evaluation(order, tmp_path, computed_in, bf16):
    run = train(tmp_path / "run", **order, bf16=bf16)
    assert next(run.model.parameters()).dtype == torch.float32
    assert computed_in[0] == (torch.bfloat16 if bf16 else torch.float32)
    assert ("bfloat16 mixed, scores in float32" in (tmp_path / "run" / "README.md").read_text()) == bf16
    computed_in.clear()
    for prefix, split in (("eval", "validation"), ("test", "test")):
        metrics = scored(tmp_path / "run", order[split])
        assert metrics == {name: pytest.approx(run.report.metrics[f"{prefix}_{name}"], rel=1e-5) for name in metrics}
    batch = run.tokenizer("who saw karla", return_tensors="pt")
    with torch.no_grad():
        (logits,) = run.model(**batch, return_dict=False)
        precise = run.model.double()(**batch).logits
    torch.testing.assert_close(logits.double(), precise, rtol=0, atol=1e-5)
    run.model.float()
    assert set(computed_in) == {torch.float32, torch.float64}
    computed_in.clear()  # and in mixed precision it can be trained again
    options = {"bf16": bf16, "use_cpu": True, "max_steps": 1, "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(output_dir=str(tmp_path / "again"), **options)
    batch = {**run.tokenizer("who saw karla"), "labels": 0}
    Trainer(run.model, arguments, DataCollatorWithPadding(run.tokenizer), [batch] * 8).train()
    assert set(computed_in) == {torch.bfloat16 if bf16 else torch.float32}


# ---- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "labels", "reference"),
    [
        ("single_label_classification", torch.tensor([0, 2, 1, 1]), functional.cross_entropy),
        ("multi_label_classification", torch.tensor([[1.0, 0, 1]] * 4), functional.binary_cross_entropy_with_logits),
        ("regression", torch.tensor([0.5, 1, 2, 3]), lambda x, y: functional.mse_loss(x.squeeze(-1), y)),
    ],
)
def test_the_loss_is_that_of_torch_and_adds_up_over_parts(problem, labels, reference):
    logits = torch.randn(4, 1 if problem == "regression" else 3)
    loss = ClassificationLoss(problem)
    whole = loss({"logits": logits}, labels)
    assert whole == pytest.approx(reference(logits, labels).item(), rel=1e-6)
    parts = [loss({"logits": logits[i:j]}, labels[i:j], labels.numel()) for i, j in ((0, 1), (1, 4))]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-6)


ABC = Labels("single_label_classification", ("a", "b", "c"))
AB = Labels("single_label_classification", ("a", "b"))
SEVERAL = Labels("multi_label_classification", ("a", "b"))


def test_balanced_class_weights_are_those_of_scikit_learn_in_training_and_in_evaluation():
    labels = [0] * 6 + [1] * 3 + [2]
    loss = make_loss(ABC, labels, "balanced", 0.0)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert loss.weights.tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    # Scaled to a mean of 1 over the examples, so that dividing by their number is the weighted mean.
    logits = torch.randn(10, 3)
    weighted = functional.cross_entropy(logits, torch.tensor(labels), weight=torch.tensor(expected).float())
    assert loss({"logits": logits}, torch.tensor(labels)).item() == pytest.approx(weighted.item(), rel=1e-5)
    # Made of logits and labels alone, not of the Trainer's batch means, in which some rows may count twice.
    scores = loss_and_metrics(loss, logits.numpy(), np.array(labels))
    assert scores["loss"] == pytest.approx(weighted.item(), rel=1e-5)
    assert scores["accuracy"] == np.mean(logits.argmax(-1).numpy() == labels)


def test_given_weights_keep_their_ratio_and_those_of_several_labels_raise_the_rare_ones():
    for given in ('{"b": 6, "a": 2}', {"b": 6, "a": 2}):  # scaled to a mean of 1
        assert make_loss(AB, [0, 0, 0, 1], given, 0.0).weights.tolist() == pytest.approx([2 / 3, 2.0])
    loss = make_loss(SEVERAL, [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], "balanced", 0.0)
    assert loss.weights.tolist() == pytest.approx([1 / 3, 3.0])


@pytest.mark.parametrize(
    ("labels", "class_weights", "smoothing", "message"),
    [
        (Labels("regression"), "balanced", 0.0, "is for classes, not numbers"),
        (Labels("regression"), None, 0.1, "--set label_smoothing_factor=0.1 needs one label per text"),
        (AB, '{"a": 1}', 0.0, "positive number for each of a, b"),
        (AB, '{"a": 1, "c": 1, "b": 2}', 0.0, "positive number for each of a, b"),
        (AB, '{"a": 1, "b": -2}', 0.0, "positive number for each of a, b"),
        (AB, "[1, 5]", 0.0, r"--class-weights '\[1, 5\]' is no JSON object"),
    ],
)
def test_weights_that_cannot_be_are_refused(labels, class_weights, smoothing, message):
    with pytest.raises(UserError, match=message):
        make_loss(labels, [0, 1], class_weights, smoothing)
