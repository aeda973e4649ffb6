import json
import math
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_posenc.finetuning.options import as_training_arguments, read_options
from huggingface_hub import ModelCard
from rich.console import Console
from safetensors.torch import load_file
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional
from training_harness import (
    SMALL,
    assert_same_weights,
    prepared,
    read_jsonl,
    results,
    rows,
    train,
    train_by_command,
    write_csv,
    write_jsonl,
)
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    Trainer,
    TrainingArguments,
    pipeline,
)

from hf_posenc import PosEncConfig
from hf_posenc.data import Labels, train_tokenizer
from hf_posenc.finetuning import make_arguments
from hf_posenc.training import ClassificationLoss, UserError
from hf_posenc.training.losses import make_loss
from hf_posenc.training.trainer import one_cycle_schedule

PARADIGM = "existential_there_quantifiers_2"


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
    return {
        scheme: train(
            folder / scheme,
            dataset_name=easy_order,
            position_embedding_type=scheme,
            config_overrides="hidden_size=64,intermediate_size=128,initializer_range=0.05",
            hidden_dropout_prob=0.0,
            learning_rate=3e-3,
            per_device_train_batch_size=32,
            num_train_epochs=epochs,
            save_strategy="epoch",
            do_eval=True,
            do_predict=True,
            license="apache-2.0",
        )
        for scheme, epochs in (("none", 1), ("rope", 4))  # none never learns it
    }


def test_the_evaluation_loss_is_made_of_logits_and_labels_alone(order, tmp_path):
    """Not of the Trainer's batch means, which with several processes count some examples twice."""
    setup = prepared(tmp_path, **order, class_weights="balanced")
    logits, labels = np.array([[1.0, -1.0], [0.5, 2.0], [0.0, 3.0]]), np.array([0, 0, 1])
    expected = functional.cross_entropy(torch.tensor(logits), torch.tensor(labels), reduction="none")
    expected = (expected * setup.loss.weights[labels]).mean()
    scores = setup.compute_metrics(EvalPrediction(predictions=logits, label_ids=labels))
    assert scores["loss"] == pytest.approx(expected.item(), rel=1e-6)
    assert scores["accuracy"] == pytest.approx(2 / 3)


def test_rope_learns_order_and_none_stays_at_one_half(trained):
    accuracy = {scheme: run.metrics["test_accuracy"] for scheme, run in trained.items()}
    assert accuracy["none"] == pytest.approx(0.5, abs=0.01)
    assert accuracy["rope"] > accuracy["none"] + 0.35


def test_a_checkpoint_holds_code_tokenizer_labels_and_readme(trained):
    folder = trained["rope"].output_dir
    names = {path.name for path in folder.iterdir()}
    code = set(PosEncConfig(position_embedding_type="rope").code_files())
    assert {name for name in names if name.endswith(".py")} == code
    assert names >= {"model.safetensors", "config.json", "tokenizer.json", "README.md", "results.json"}
    best_and_last = {results(folder)["best"]["step"], max(entry["step"] for entry in results(folder)["history"])}
    assert {f"checkpoint-{step}" for step in best_and_last} <= names
    assert not [name for name in names if name.startswith(".")]
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "acceptable", "1": "unacceptable"}
    assert config["problem_type"] == "single_label_classification"


def test_the_readme_says_what_the_hub_reads(trained, easy_order):
    run = trained["rope"]
    card = ModelCard.load(run.output_dir / "README.md")
    assert (card.data.pipeline_tag, card.data.license, card.data.library_name) == (
        "text-classification",
        "apache-2.0",
        "transformers",
    )
    metrics = {(entry.dataset_split, entry.metric_type): entry.metric_value for entry in card.data.eval_results}
    assert {entry.dataset_name for entry in card.data.eval_results} == {Path(easy_order).name}
    assert metrics["test", "accuracy"] == pytest.approx(run.metrics["test_accuracy"], abs=1e-4)
    assert metrics["validation", "macro_f1"] == pytest.approx(run.metrics["eval_macro_f1"], abs=1e-4)
    assert "0. `acceptable`" in card.text


def test_results_and_predictions_agree_with_the_model(trained, easy_order):
    run = trained["rope"]
    saved = results(run.output_dir)
    assert saved["metrics"]["test_accuracy"] == run.metrics["test_accuracy"]
    assert saved["arguments"]["training"]["seed"] == 1
    assert saved["versions"]["transformers"]
    test = read_jsonl(f"{easy_order}/test.jsonl")
    predicted = read_jsonl(run.output_dir / "predictions.jsonl")
    right = [row["label"] == line["label"] for row, line in zip(test, predicted, strict=True)]
    assert np.mean(right) == pytest.approx(run.metrics["test_accuracy"])
    classify = pipeline("text-classification", str(run.output_dir), trust_remote_code=True)
    for answer, line in zip(classify([row["text"] for row in test[:8]]), predicted, strict=False):
        assert answer["label"] == line["label"]
        assert answer["score"] == pytest.approx(line["probabilities"][line["label"]], abs=1e-4)


def test_the_summary_counts_what_is_there(order, tmp_path):
    options = {"position_embedding_type": "learned", "max_seq_length": 32}
    setup = prepared(tmp_path / "run", train_file=order["train_file"], **options)
    summary, lengths = setup.summary, [len(ids) for ids in setup.encoded["train"]["input_ids"]]
    assert summary.parameters == sum(parameter.numel() for parameter in setup.model.parameters())
    assert summary.positional_parameters == 32 * 32
    assert summary.vocab_size == len(setup.tokenizer)
    assert summary.examples == {"train": 160}
    assert summary.tokens == sum(lengths) < summary.padded_tokens <= max(lengths) * len(lengths)
    assert 0 < summary.padding_share < 0.6


def test_a_saved_run_can_be_evaluated_alone_and_trained_on(trained, easy_order, tmp_path):
    first = trained["rope"]
    again = train(
        tmp_path / "evaluated",
        dataset_name=easy_order,
        model_name_or_path=str(first.output_dir),
        config_overrides=None,
        do_train=False,
        do_predict=True,
    )
    assert again.metrics["test_accuracy"] == first.metrics["test_accuracy"]
    assert not (tmp_path / "evaluated" / "config.json").exists()
    more = train(
        tmp_path / "more",
        dataset_name=easy_order,
        model_name_or_path=str(first.output_dir),
        config_overrides=None,
        max_train_samples=64,
        do_predict=True,
    )
    assert more.metrics["test_accuracy"] > 0.8
    assert more.summary.vocab_size == first.summary.vocab_size


def test_several_labels_per_text(tmp_path):
    """transformers' own script fails here: a map over the label column keeps its strings."""
    words = ("who", "that", "only")
    examples = [
        {"text": row["text"], "label": [word for word in words if word in row["text"].split()]}
        for row in rows("train", 600)
    ]
    run = train(
        tmp_path / "run",
        train_file=write_jsonl(tmp_path / "train.jsonl", examples[:500]),
        test_file=write_jsonl(tmp_path / "test.jsonl", examples[500:]),
        do_predict=True,
        num_train_epochs=4,
        learning_rate=3e-3,
    )
    assert run.summary.problem_type == "multi_label_classification"
    assert run.summary.labels == tuple(sorted(words))
    assert run.metrics["test_accuracy"] > 0.5
    predicted = read_jsonl(run.output_dir / "predictions.jsonl")
    exact = [sorted(line["label"]) == sorted(row["label"]) for line, row in zip(predicted, examples[500:], strict=True)]
    assert np.mean(exact) == pytest.approx(run.metrics["test_accuracy"])


def test_pairs(tmp_path):
    texts = [row["text"] for row in rows("train", 400)]
    examples = [
        {"premise": text, "hypothesis": text if index % 2 else other, "label": index % 2}
        for index, (text, other) in enumerate(zip(texts, texts[::-1], strict=True))
    ]
    run = train(
        tmp_path / "run",
        train_file=write_jsonl(tmp_path / "train.jsonl", examples[:320]),
        validation_file=write_jsonl(tmp_path / "validation.jsonl", examples[320:]),
        do_eval=True,
    )
    assert run.summary.labels == ("0", "1")
    assert math.isfinite(run.metrics["eval_loss"])
    setup = prepared(tmp_path / "other", train_file=str(tmp_path / "train.jsonl"))
    assert set(setup.encoded["train"][0]) == {"input_ids", "token_type_ids", "attention_mask", "labels"}
    assert max(map(max, setup.encoded["train"]["token_type_ids"])) == 1


def test_test_data_without_labels_is_predicted(order, tmp_path):
    texts = [{"text": row["text"]} for row in rows("test", 5)]
    test = write_jsonl(tmp_path / "unlabelled.jsonl", texts)
    run = train(tmp_path / "run", **{**order, "test_file": test}, do_predict=True)
    assert "test_accuracy" not in run.metrics
    predicted = read_jsonl(run.output_dir / "predictions.jsonl")
    assert [line["index"] for line in predicted] == [0, 1, 2, 3, 4]
    assert all(sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5) for line in predicted)


def test_a_model_of_another_family(order, tmp_path):
    """Any checkpoint that the Auto class knows can be trained; its own positions can't be changed by an option."""
    first = train(tmp_path / "first", train_file=order["train_file"])
    config = BertConfig(
        vocab_size=len(first.tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    first.tokenizer.save_pretrained(tmp_path / "bert")
    options = {"model_name_or_path": str(tmp_path / "bert"), "config_overrides": None, **order}
    run = train(tmp_path / "run", **options, do_eval=True)
    assert (run.summary.max_length, run.summary.positional_parameters) == (64, 64 * 32)
    assert run.model.config.id2label == {0: "acceptable", 1: "unacceptable"}
    with pytest.raises(UserError, match="a bert model, has its own positions"):
        train(tmp_path / "refused", **options, position_embedding_type="rope")


# ---- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "labels", "reference"),
    [
        ("single_label_classification", torch.tensor([0, 2, 1, 1]), functional.cross_entropy),
        (
            "multi_label_classification",
            torch.tensor([[1.0, 0, 1]] * 4),
            functional.binary_cross_entropy_with_logits,
        ),
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


AB = Labels("single_label_classification", ("a", "b"))


def _loss(labels, names, **options):
    return make_loss(labels, names, make_arguments(output_dir="unused", **options)[2])


def test_balanced_class_weights_are_those_of_scikit_learn():
    labels = [0] * 6 + [1] * 3 + [2]
    loss = _loss(Labels("single_label_classification", ("a", "b", "c")), labels, class_weights="balanced")
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert loss.weights.tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    # Scaled to a mean of 1 over the examples, so that dividing by their number is the weighted mean.
    logits = torch.randn(10, 3)
    balanced = loss({"logits": logits}, torch.tensor(labels))
    weighted = functional.cross_entropy(logits, torch.tensor(labels), weight=torch.tensor(expected).float())
    assert balanced.item() == pytest.approx(weighted.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("problem", "labels", "class_weights", "weights"),
    [
        ("single_label_classification", [0, 0, 0, 1], '{"b": 6, "a": 2}', [2 / 3, 2.0]),  # their mean is 1
        ("multi_label_classification", [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], "balanced", [1 / 3, 3.0]),
    ],
)
def test_given_weights_keep_their_ratio_and_those_of_several_labels_raise_the_rare_ones(
    problem, labels, class_weights, weights
):
    loss = _loss(Labels(problem, ("a", "b")), labels, class_weights=class_weights)
    assert loss.weights.tolist() == pytest.approx(weights)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (Labels("regression"), {"class_weights": "balanced"}, "is for classes, not numbers"),
        (Labels("regression"), {"label_smoothing_factor": 0.1}, "needs one label per text"),
        (AB, {"class_weights": '{"a": 1}'}, "no label 'b'|'b'"),
        (AB, {"class_weights": '{"a": 1, "c": 1, "b": 2}'}, "'c'"),
        (AB, {"class_weights": '{"a": 1, "b": -2}'}, "has -2"),
        (AB, {"class_weights": "[1, 5]"}, r"'\[1, 5\]' names no labels. Give balanced, or "),
        (AB, {"class_weights": [1, 5]}, "names no labels. Give balanced"),
    ],
)
def test_weights_that_cannot_be_are_refused(labels, options, message):
    with pytest.raises(UserError, match=message):
        _loss(labels, [0, 1], **options)


# ---- the schedule ---------------------------------------------------------------------------------------------------


def test_one_cycle_rises_and_falls_and_ends():
    groups = [
        {"params": [torch.nn.Parameter(torch.zeros(1))]},
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.3},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    training = make_arguments(output_dir="unused", learning_rate=0.01, num_train_epochs=2, warmup_steps=0.25)[2]
    schedule = one_cycle_schedule(optimizer, training, batches_per_epoch=10)
    rates, momenta = [], []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["betas"][0])
        optimizer.step()
        schedule.step()
    assert max(rates) == pytest.approx(0.01, rel=0.02)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(30 * optimizer.param_groups[0]["lr"])
    assert 3 <= int(np.argmax(rates)) <= 6
    assert rates[-1] < 0.001 > rates[0] / 10
    assert min(momenta) < 0.86 < 0.94 < max(momenta)


def test_early_stopping_keeps_the_best_checkpoint(order, tmp_path):
    run = train(
        tmp_path / "run",
        **order,
        do_eval=True,
        save_strategy="epoch",
        num_train_epochs=8,
        learning_rate=2e-2,
        early_stopping_patience=1,
    )
    scores = [entry["eval_macro_f1"] for entry in run.history if "eval_macro_f1" in entry]
    # The last entry is the final evaluation, of the best weights.
    assert scores[-1] == pytest.approx(max(scores), rel=1e-5)
    assert len(scores) - 1 < 8


OVERFIT = {"do_eval": True, "save_strategy": None, "num_train_epochs": 4, "learning_rate": 2e-2, "seed": 3}
OVERFIT |= {"lr_scheduler_type": "constant", "warmup_steps": 0}


@pytest.mark.parametrize("kept", [True, False])
def test_the_weights_with_the_best_macro_f1_are_kept_by_default_or_else_the_last(order, tmp_path, kept):
    run = train(tmp_path / "run", **order, **OVERFIT, **({} if kept else {"load_best_model_at_end": False}))
    *scores, last = (entry["eval_macro_f1"] for entry in run.history if "eval_macro_f1" in entry)
    assert run.metrics["eval_macro_f1"] == last == (max(scores) if kept else scores[-1])
    assert max(scores) > scores[-1]  # or this test would show nothing
    best = results(tmp_path / "run")["best"]
    assert best["metric"] == "eval_macro_f1" if kept else best is None


@pytest.mark.slow
def test_the_weights_with_the_least_loss_are_kept_where_that_is_asked(order, tmp_path):
    text = StringIO()
    run = train(tmp_path / "run", Console(file=text, width=200), **order, **OVERFIT, metric_for_best_model="loss")
    losses = [entry["eval_loss"] for entry in run.history if "eval_loss" in entry]
    assert run.metrics["eval_loss"] == pytest.approx(min(losses), rel=1e-5)
    assert losses[-2] > min(losses)  # or this test would show nothing; the last entry is the evaluation at the end
    best = results(tmp_path / "run")["best"]
    assert (best["metric"], best["value"]) == ("eval_loss", min(losses))
    assert best["epoch"] == losses.index(min(losses)) + 1
    assert (
        f"Kept the weights of epoch {best['epoch']:g} (step {best['step']}), the best by eval_loss" in text.getvalue()
    )
    assert_same_weights(tmp_path / "run", tmp_path / "run" / best["checkpoint"])
    assert f"best by eval_loss: epoch {best['epoch']:g}" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize("options", [{}, {"eval_strategy": "epoch"}, {"do_eval": True, "eval_strategy": "no"}])
def test_early_stopping_without_evaluations_is_refused(options):
    with pytest.raises(UserError, match="--early-stopping-patience 2 needs evaluations while training: give --do-eval"):
        make_arguments(output_dir="unused", do_train=True, early_stopping_patience=2, **options)


@pytest.mark.parametrize(
    ("options", "saved", "best"),
    [
        ({"do_eval": True}, ("epoch", 500), True),
        ({}, ("epoch", 500), False),
        ({"do_eval": True, "eval_strategy": "steps", "eval_steps": 20}, ("steps", 20), True),
        ({"do_eval": True, "eval_strategy": "steps", "eval_steps": 20, "save_steps": 40}, ("steps", 40), True),
        ({"do_eval": True, "save_strategy": "steps", "save_steps": 40}, ("steps", 40), False),
        ({"do_eval": True, "save_strategy": "no"}, ("no", 500), False),
        ({"do_eval": True, "save_strategy": "best"}, ("best", 500), True),
        ({"do_eval": True, "load_best_model_at_end": False}, ("epoch", 500), False),
        ({"do_eval": True, "early_stopping_patience": 1}, ("epoch", 500), True),
    ],
)
def test_checkpoints_are_saved_when_they_are_evaluated(options, saved, best):
    training = make_arguments(output_dir="unused", do_train=True, **options)[2]
    assert (training.save_strategy, training.save_steps, training.load_best_model_at_end) == (*saved, best)


@pytest.mark.parametrize(("words", "expected"), [([], None), ([""], True), (["false"], False)])
def test_a_switch_with_a_default_of_its_own_can_stand_alone(words, expected):
    option = [["--skip-missing", *filter(None, words)], ["--load-best-model-at-end", *filter(None, words)]]
    arguments = [word for part in option for word in part] if words else []
    data, _, options = read_options(["--output-dir", "unused", "--do-train", "--do-eval", *arguments])
    assert data.skip_missing is bool(expected)
    assert as_training_arguments(options).load_best_model_at_end is (expected is not False)
    *_, alone = read_options(["--output-dir", "unused", "--do-eval", *arguments])
    assert as_training_arguments(alone).load_best_model_at_end is False


def prepared_csv(folder, examples, **options):
    """What a run on a csv would be given."""
    path = write_csv(folder / "mine.csv", examples)
    return prepared(folder / "run", **{"do_eval": True, "train_file": path, **options})


def labelled(labels):
    return [{"text": f"text {row} here", "label": label} for row, label in enumerate(labels)]


@pytest.mark.parametrize("labels", ["ab" * 5, "a" * 8 + "bb"])
def test_ten_rows_are_trained_and_validated_on_both_labels(labels, tmp_path):
    setup = prepared_csv(tmp_path, labelled(labels))
    assert setup.labels.names == ("a", "b")
    assert sorted(setup.encoded["validation"]["labels"]) == [0, 1]
    assert set(setup.encoded["train"]["labels"]) == {0, 1}


def test_a_label_with_one_example_is_trained_on_alone(tmp_path):
    setup = prepared_csv(tmp_path, labelled("ab" * 20 + "c"))
    assert setup.labels.names == ("a", "b", "c")
    assert set(setup.encoded["validation"]["labels"]) == {0, 1}
    assert 2 in setup.encoded["train"]["labels"]
    assert "No row of 'c' was set aside for validation." in setup.summary.data.doubts()


def test_a_label_that_the_first_rows_lack_is_known(tmp_path):
    training_rows = labelled("ab" * 10 + "c" * 4)
    test = write_csv(tmp_path / "test.csv", training_rows)
    setup = prepared_csv(
        tmp_path, training_rows, do_predict=True, test_file=test, validation_file=test, max_train_samples=8
    )
    assert setup.labels.names == ("a", "b", "c")
    assert (len(setup.encoded["train"]), len(setup.encoded["test"])) == (8, 24)


def test_training_rows_of_one_label_are_refused_and_validation_rows_are_named(tmp_path, caplog):
    training_rows = labelled("a" * 10 + "b" * 10)
    one_label_path = write_csv(tmp_path / "one.csv", training_rows[:5])
    with pytest.raises(UserError, match="All 8 examples that are left to train on have the label 'a'.*max-train-samp"):
        prepared_csv(tmp_path, training_rows, validation_file=one_label_path, max_train_samples=8)
    prepared_csv(tmp_path, training_rows, validation_file=one_label_path)
    assert "All 5 validation examples have the label 'a': scores on them say little" in caplog.text


def test_rows_without_label_or_text_are_left_out_of_all_splits(tmp_path):
    examples = labelled("ab" * 6)
    for row, column in ((2, "label"), (5, "text"), (7, "label")):
        examples[row] = {**examples[row], column: ""}
    path = write_csv(tmp_path / "mine.csv", examples)
    with pytest.raises(UserError, match=r"line 4 has none in column 'label', nor has 1 other\."):
        prepared_csv(tmp_path, examples, validation_file=path)
    options = {"validation_file": path, "test_file": path, "do_predict": True, "skip_missing": True}
    setup = prepared_csv(tmp_path, examples, **options)
    assert [len(setup.encoded[split]) for split in ("train", "validation", "test")] == [9, 9, 9]
    assert setup.test_rows == [0, 1, 3, 4, 6, 8, 9, 10, 11]
    doubts = setup.summary.data.doubts()
    assert "2 test rows without a label left out (--skip-missing)." in doubts
    assert "1 train row without a text left out (--skip-missing)." in doubts
    train_on = train(tmp_path / "run", train_file=path, **options)
    assert train_on.summary.examples["test"] == 9
    assert [row["index"] for row in read_jsonl(tmp_path / "run" / "predictions.jsonl")] == setup.test_rows


def test_a_checkpoint_is_evaluated_on_the_columns_that_it_was_trained_on(tmp_path):
    reviews = [{"text": "no text", "Review": row["text"], "Verdict": row["label"]} for row in rows("train", 60)]
    path = write_csv(tmp_path / "reviews.csv", reviews)
    options = {"text_column_names": "Review", "label_column_name": "Verdict"}
    trained = train(tmp_path / "run", train_file=path, validation_file=path, do_eval=True, **options)
    again = {"model_name_or_path": str(tmp_path / "run"), "validation_file": path, "config_overrides": None}
    evaluated = train(tmp_path / "again", **again, do_eval=True, do_train=False)
    assert evaluated.metrics["eval_loss"] == pytest.approx(trained.metrics["eval_loss"], rel=1e-4)


def test_a_labelled_test_split_is_scored_where_that_is_asked(order, tmp_path):
    run = train(tmp_path / "run", **order, score_test=True)
    assert "test_accuracy" in run.metrics
    bare = write_jsonl(tmp_path / "bare.jsonl", [{"text": "who saw karla"}])
    run = train(tmp_path / "other", **{**order, "test_file": bare}, score_test=True)
    assert run.summary.examples.keys() == {"train"}
    assert "test_file" in order
    run = train(tmp_path / "third", train_file=order["train_file"], score_test=True)
    assert "test_accuracy" not in run.metrics


def test_a_checkpoint_on_the_way_holds_all_that_a_finished_one_does(order, tmp_path):
    run = train(tmp_path / "run", **order, do_eval=True, save_strategy="epoch", load_best_model_at_end=False)
    (folder,) = run.output_dir.glob("checkpoint-*")
    names = {path.name for path in run.output_dir.iterdir() if path.is_file()}
    assert names - {"confusion_matrix.png"} <= {path.name for path in folder.iterdir()}
    saved = results(folder)
    assert saved["metrics"]["eval_loss"] == pytest.approx(run.metrics["eval_loss"], rel=1e-5)
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "text-classification"
    assert f"# run/{folder.name}\n" in card.text


@pytest.mark.slow
def test_the_loss_is_the_same_with_accumulated_gradients(order, tmp_path):
    options = {**order, "hidden_dropout_prob": 0.0, "do_eval": True, "num_train_epochs": 2}
    whole = train(tmp_path / "whole", **options)
    parts = train(tmp_path / "parts", **options, per_device_train_batch_size=4, gradient_accumulation_steps=4)
    assert parts.metrics["train_loss"] == pytest.approx(whole.metrics["train_loss"], abs=1e-5)
    assert parts.metrics["eval_loss"] == pytest.approx(whole.metrics["eval_loss"], abs=1e-4)


@pytest.mark.slow
def test_frozen_word_embeddings_stay_and_the_rest_learns(order, tmp_path):
    train(tmp_path / "first", **order)
    second = {**order, "model_name_or_path": str(tmp_path / "first"), "freeze_word_embeddings": True}
    train(tmp_path / "second", **second, config_overrides=None)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert set(before) - changed == {"model.embeddings.word_embeddings.weight"}
    train(tmp_path / "third", **second, config_overrides=None, save_strategy="steps", save_steps=5)
    again = {**second, "freeze_word_embeddings": False, "resume_from_checkpoint": str(tmp_path / "third/checkpoint-5")}
    with pytest.raises(UserError, match=r"was trained with freeze_word_embeddings=True, the options .* say False"):
        train(tmp_path / "third", **again, config_overrides=None, save_strategy="steps", save_steps=5)
    with pytest.raises(UserError, match=r"freeze_word_embeddings=True would keep random word"):
        train(tmp_path / "fourth", **order, freeze_word_embeddings=True)


def test_a_tokenizer_of_more_tokens_than_the_model_knows_is_refused(order, tmp_path):
    train(tmp_path / "run", **order, max_steps=1, vocab_size=200)
    larger = train_tokenizer([row["text"] for row in rows("train", 160)], vocab_size=900)
    larger.save_pretrained(tmp_path / "larger")
    options = {**order, "model_name_or_path": str(tmp_path / "run"), "config_overrides": None}
    with pytest.raises(UserError, match=rf"has {len(larger)} tokens, .*run' knows 200. .* --tokenizer-name"):
        train(tmp_path / "other", **options, tokenizer_name=str(tmp_path / "larger"))


def test_one_seed_gives_one_result(order, tmp_path):
    for name in ("first", "second"):
        train(tmp_path / name, train_file=order["train_file"])
    assert_same_weights(tmp_path / "first", tmp_path / "second")


@pytest.mark.promise(
    "Numbers",
    "Final scores are float32, and those of a later evaluation, whatever precision the training had",
)
@pytest.mark.parametrize("bf16", [True, False])
def test_final_scores_are_float32_and_those_of_an_evaluation(order, tmp_path, computed_in, bf16):
    wanted = {**order, "bf16": bf16, "do_eval": True, "do_predict": True}
    trained = train(tmp_path / "run", Console(file=(printed := StringIO()), width=200), **wanted)
    assert printed.getvalue().count("in bfloat16 mixed precision (--bf16 false: float32); scores in float32.") == bf16
    assert printed.getvalue().count("bfloat16") == bf16
    assert next(trained.model.parameters()).dtype == torch.float32
    assert computed_in[0] == (torch.bfloat16 if bf16 else torch.float32)
    computed_in.clear()
    options = {"model_name_or_path": str(tmp_path / "run"), "do_train": False, "config_overrides": None}
    scored = train(tmp_path / "scored", **wanted, **options)
    assert set(computed_in) == {torch.float32}
    measured = [f"{split}_{name}" for split in ("eval", "test") for name in ("loss", "accuracy", "macro_f1")]
    assert [scored.metrics[name] for name in measured] == [trained.metrics[name] for name in measured]
    first, second = (read_jsonl(tmp_path / name / "predictions.jsonl") for name in ("run", "scored"))
    assert first == second


def test_a_model_trained_in_mixed_precision_can_be_trained_so_again(order, tmp_path, computed_in):
    run = train(tmp_path / "run", **order, bf16=True)
    computed_in.clear()
    options = {"bf16": True, "use_cpu": True, "max_steps": 1, "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(output_dir=str(tmp_path / "again"), **options)
    batch = {**run.tokenizer("who saw karla"), "labels": 0}
    Trainer(run.model, arguments, DataCollatorWithPadding(run.tokenizer), [batch] * 8).train()
    assert set(computed_in) == {torch.bfloat16}


def test_options_can_come_from_a_json_file(order, tmp_path):
    path = tmp_path / "options.json"
    path.write_text(json.dumps({**SMALL, **order, "output_dir": str(tmp_path / "run"), "learning_rate": 0.5}))
    data, _, training = read_options([str(path)])
    assert (data.train_file, training.learning_rate) == (order["train_file"], 0.5)


def test_the_command_is_the_function(order, tmp_path, monkeypatch):
    options = {**order, "do_eval": True}
    assert train_by_command(monkeypatch, **options, output_dir=tmp_path / "command") == 0
    train(tmp_path / "function", **options)
    assert_same_weights(tmp_path / "command", tmp_path / "function")
