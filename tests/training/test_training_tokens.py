"""`--task tokens`: a label for each word, aligned with its pieces; metrics of words and of spans."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from common import tiny_config
from rich.console import Console
from training_harness import SMALL, read_jsonl, results, rows, write_jsonl
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from hf_posenc import PosEncForTokenClassification
from hf_posenc.data import train_tokenizer
from hf_posenc.data.encoding import encode_words, word_pieces
from hf_posenc.finetuning import fine_tune, make_arguments
from hf_posenc.finetuning.prediction import label_words
from hf_posenc.training import TrainingResult, UserError
from hf_posenc.training.baseline import word_label_answers
from hf_posenc.training.word_metrics import span_scores, spans

NAMES = ["B-DET", "B-PRO", "O"]
KINDS = {
    **dict.fromkeys(("the", "a", "an", "this", "these", "that", "those", "every", "some"), "B-DET"),
    **dict.fromkeys(("he", "she", "it", "it's", "they", "who", "himself", "herself", "themselves"), "B-PRO"),
}


def sentences(split: str, count: int) -> list[dict[str, Any]]:
    """Words of real sentences; articles and pronouns are spans."""
    words = [row["text"].split() for row in rows(split, count)]
    return [{"tokens": sentence, "ner_tags": [KINDS.get(word, "O") for word in sentence]} for sentence in words]


@pytest.fixture
def words(tmp_path: Path) -> dict[str, str]:
    return {
        f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", sentences(split, count))
        for split, count in (("train", 240), ("validation", 48), ("test", 48))
    }


def train(folder: Path, data: dict[str, str], **options: Any) -> TrainingResult:
    arguments = {**SMALL, "task": "tokens", "output_dir": str(folder), "do_eval": True, **data, **options}
    return fine_tune(*make_arguments(**arguments), console=Console(file=StringIO()))


def test_words_are_labelled_and_the_checkpoint_answers_to_the_pipeline(tmp_path: Path, words: dict[str, str]) -> None:
    result = train(tmp_path / "run", words, num_train_epochs=4, learning_rate=5e-3, do_predict=True)
    assert result.metrics["eval_span_f1"] > 0.8
    assert result.metrics["test_span_f1"] > 0.8
    assert result.metrics["test_accuracy"] > 0.9
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "run")
    assert [model.config.id2label[number] for number in range(3)] == NAMES
    test_rows = sentences("test", 48)
    predicted = read_jsonl(tmp_path / "run" / "predictions.jsonl")
    assert all(len(row["labels"]) == len(example["tokens"]) for row, example in zip(predicted, test_rows, strict=True))
    right = [row["labels"] == example["ner_tags"] for row, example in zip(predicted, test_rows, strict=True)]
    assert sum(right) > 24
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    answers = label_words(model, tokenizer, [example["tokens"] for example in test_rows], 16)
    assert [labels for _, labels in answers] == [row["labels"] for row in predicted]
    text = " ".join(test_rows[0]["tokens"])
    classify = pipeline("token-classification", str(tmp_path / "run"), aggregation_strategy="first")
    found_spans = [(group["word"], group["entity_group"]) for group in classify(text) if group["entity_group"] != "O"]
    expected = [
        (" ".join(test_rows[0]["tokens"][start:end]), kind) for kind, start, end in spans(predicted[0]["labels"])
    ]
    assert found_spans == expected
    assert results(tmp_path / "run")["problem_type"] == "token_classification"
    card = (tmp_path / "run" / "README.md").read_text()
    assert "pipeline_tag: token-classification" in card
    standing = results(tmp_path / "run")["assessment"]
    assert standing["metric"] == "span_f1"
    assert standing["score"] == result.metrics["test_span_f1"]
    assert standing["baselines"]["majority"] == 0  # it finds no span
    assert standing["baselines"]["word_labels"] > 0.95  # the labels hang on the word alone
    assert any("below the most frequent label of each word" in warning for warning in standing["warnings"]) == (
        standing["score"] < standing["baselines"]["word_labels"]
    )
    assert sum(row["examples"] for row in standing["classes"]) == sum(len(example["tokens"]) for example in test_rows)
    assert "| most frequent label of each word |" in card


@pytest.mark.parametrize(("names", "metric"), [(("B-DET", "B-PRO", "O"), "span_f1"), (("DET", "PRO", "X"), "macro_f1")])
def test_the_epoch_with_the_best_spans_is_kept_or_else_the_best_macro_f1(
    tmp_path: Path, names: tuple[str, ...], metric: str
) -> None:
    renamed = dict(zip(NAMES, names, strict=True))
    data = {
        f"{split}_file": write_jsonl(
            tmp_path / f"{split}.jsonl",
            [{**row, "ner_tags": [renamed[tag] for tag in row["ner_tags"]]} for row in sentences(split, count)],
        )
        for split, count in (("train", 64), ("validation", 24))
    }
    train(tmp_path / "run", data, num_train_epochs=3, save_strategy=None, learning_rate=2e-2, baseline=False)
    best = results(tmp_path / "run")["best"]
    history = [entry[f"eval_{metric}"] for entry in results(tmp_path / "run")["history"] if f"eval_{metric}" in entry]
    assert best["metric"] == f"eval_{metric}"
    assert best["value"] == max(history)


def test_a_word_has_its_most_frequent_label_and_a_new_word_that_of_all() -> None:
    answers = word_label_answers([["a", "b", "a"], ["a", "c"]], [["X", "Y", "Y"], ["X", "Y"]], [["a", "c", "new"], []])
    assert answers == {"majority": [["Y", "Y", "Y"], []], "word_labels": [["X", "Y", "Y"], []]}


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_the_first_piece_of_each_word_carries_its_label(kind: str) -> None:
    texts = [row["text"] for row in rows("train", 100)]
    tokenizer = train_tokenizer(texts, kind, 300)
    words = ["unbelievably", "can't", "", "end", "of", "naïve-ish", "."]
    tokens, firsts = word_pieces(tokenizer, words, 128)
    assert sorted(firsts) == [0, 1, 3, 4, 5, 6]
    for word, place in firsts.items():
        piece = tokenizer.decode([tokens["input_ids"][place]]).strip().removeprefix("##")
        assert words[word].replace("ï", "i").startswith(piece.replace("ï", "i")[:1])
    assert list(firsts.values()) == sorted(firsts.values())
    cut, kept = word_pieces(tokenizer, words, 4)
    assert len(cut["input_ids"]) == 4
    assert set(kept) < set(firsts)


def test_words_beyond_the_longest_input_are_said_and_have_no_label(caplog: pytest.LogCaptureFixture) -> None:
    words = ["a", "b"] * 4
    tokenizer = train_tokenizer(["a b"], vocab_size=50, model_max_length=6)
    encoded = encode_words([words], [[1, 2] * 4], tokenizer, 6)
    assert list(encoded["labels"][0]) == [-100, 1, 2, 1, 2, -100]
    assert "4 train words have no token, or are beyond 6 tokens" in caplog.text
    config = tiny_config(num_labels=3, vocab_size=len(tokenizer))
    ((_, labels),) = label_words(PosEncForTokenClassification(config).eval(), tokenizer, [words])
    assert [label is None for label in labels] == [False] * 4 + [True] * 4


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-A I-A O B-B", [("A", 0, 2), ("B", 3, 4)]),
        ("B-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),
        ("I-A I-A O I-B", [("A", 0, 2), ("B", 3, 4)]),
        ("B-A I-B I-B", [("A", 0, 1), ("B", 1, 3)]),
        ("S-A B-A I-A E-A O", [("A", 0, 1), ("A", 1, 4)]),
        ("U-A B-A L-A", [("A", 0, 1), ("A", 1, 3)]),
        ("O O", []),
        ("", []),
    ],
)
def test_spans_are_those_of_conlleval(tags: str, expected: list[Any]) -> None:
    assert list(spans(tags.split())) == expected


def test_a_span_counts_only_whole() -> None:
    right = [["B-A", "I-A", "O"], ["B-B", "O", "B-A"]]
    predicted = [["B-A", "O", "O"], ["B-B", "O", "B-B"]]
    assert span_scores(right, predicted) == {"span_precision": 1 / 3, "span_recall": 1 / 3, "span_f1": 1 / 3}
    assert span_scores(right, right)["span_f1"] == 1
    assert span_scores([["O"]], [["O"]])["span_f1"] == 0


def test_options_for_labels_of_texts_are_refused(tmp_path: Path, words: dict[str, str]) -> None:
    with pytest.raises(UserError, match="--class-weights"):
        train(tmp_path / "run", words, class_weights="balanced")
