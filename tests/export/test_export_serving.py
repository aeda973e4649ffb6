"""`benchmark --serving`: figures, targets, and what is refused; the runtimes themselves in the slow test."""

import json

import numpy as np
import pytest
from export_harness import checkpoint, tokenizer
from transformers import BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

from hf_posenc import benchmark
from hf_posenc.cli import app
from hf_posenc.conversion.measure import own_texts
from hf_posenc.errors import UserError
from hf_posenc.export import serving

LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
TORCH = ["posenc:torch:float32", "bert:torch:float32"]


def judged(accuracy: float | None, **changes: float) -> dict[str, str]:
    """Outcomes where ours is 11 times as fast as the reference and all works take BERT's time."""
    rows = [
        {"work": work, "mode": "inference", "contender": name, "ratio": changes.get(name.replace(":", "_"), 11.0)}
        | {"accuracy": accuracy if name.endswith("int8") else None if accuracy is None else 0.9}
        for work in (serving.FILE, serving.FULL, serving.SHORT)
        for name in serving.CONTENDERS
    ]
    return {row["target"]: row["outcome"] for row in benchmark.judge(rows, serving.SERVING_TARGETS, "inference")}


def test_targets_count_int8_only_within_the_gate():
    int8, *others = serving.SERVING_TARGETS
    assert set(judged(0.895).values()) == {"pass"}
    assert judged(0.88)[int8.name] == "fail"
    assert judged(None)[int8.name] == "not measured"
    slow = judged(0.9, posenc_openvino_bf16=7.0)
    assert [name for name, outcome in slow.items() if outcome == "fail"] == [
        target.name for target in others if "openvino:bf16" in target.name
    ]


def test_figures_are_of_medians_within_a_round(monkeypatch):
    taken = {"as_they_come": iter([2.0, 8.0, 4.0]), "sorted": iter([1.0] * 6)}

    def run_alone(job):
        np.save(job["answers"], np.tile([0.0, 1.0], (40, 1)))
        seconds = dict.fromkeys(job["rows"], next(taken["as_they_come" if job["as_they_come"] else "sorted"]))
        assert sorted(map(len, job["rows"].values())) == [1, 8, 40]
        linear = {work: value / 4 for work, value in seconds.items()}
        return {"seconds": seconds, "linear_seconds": linear, "batches": 2}

    monkeypatch.setattr(serving, "run_alone", run_alone)
    saved = []
    results = serving.run_serving(
        TORCH, size="tiny", texts=40, save=lambda measured: saved.append(len(measured["rows"]))
    )
    assert saved == [9, 9, 9]
    rows = {(row["work"], row["contender"]): row for row in results["rows"]}
    reference, ours = rows[serving.FILE, serving.REFERENCE], rows[serving.FILE, TORCH[0]]
    assert (reference["milliseconds"], reference["ratio"], reference["texts_per_second"]) == (2000, 1, 10)
    assert (ours["milliseconds"], ours["ratio"], ours["linear_share"], ours["accuracy"]) == (500, 4, 0.25, None)
    assert ours["agreement"] == 1.0
    assert {row["outcome"] for row in results["targets"]} == {"not measured"}
    assert f"| file | {TORCH[0]} | 500.0 | 40 | 4.00 | 25% |" in benchmark.serving_table(results)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"contenders": ["bert:torch:int4"]}, "'bert:torch:int4' is unknown. Of --serving there are bert:torch"),
        ({"evaluate": "test.csv"}, "--evaluate and --stock go with a trained model"),
        ({"rounds": 0}, "rounds=0, texts=1600: give at least one"),
        ({"size": "huge"}, "size='huge' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(UserError, match=words):
        serving.run_serving(**options)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--evaluate", "is for --serving"),
        ("--texts", "is for --serving"),
        ("--threads", "its own threads"),
        ("--dtype", "doesn't go with --serving"),
    ],
)
def test_options_of_the_other_benchmark_are_refused(option, words):
    arguments = [option, "2"] if words == "is for --serving" else ["--serving", option, "2"]
    done = CliRunner().invoke(app, ["benchmark", *arguments, "--contenders", "nothing"])
    assert words in str(done.exception)


@pytest.mark.slow
def test_each_runtime_answers_alone_in_its_process(tmp_path):
    target = tmp_path / "serving.json"
    names = "posenc:torch:float32,posenc:openvino:float32,posenc:onnx:int8"
    arguments = ["--serving", "--sizes", "tiny", "--rounds", "1", "--texts", "40", "--contenders", names]
    done = CliRunner().invoke(app, ["benchmark", *arguments, "-o", str(target)])
    assert done.exit_code == 0, done.output
    results = json.loads(target.read_text())
    assert len(results["rows"]) == 3 * 4
    assert all(row["milliseconds"] > 0 for row in results["rows"])
    assert all((row["linear_share"] is not None) == (":torch:" in row["contender"]) for row in results["rows"])
    assert {row["agreement"] for row in results["rows"] if row["contender"] == "posenc:openvino:float32"} == {1.0}
    assert target.with_suffix(".md").read_text() == benchmark.serving_table(results) + "\n"


@pytest.mark.slow
def test_a_trained_pair_is_measured_on_labelled_and_calibrated_on_other_texts(tmp_path):
    model, words = checkpoint(tmp_path / "mine", max_position_embeddings=128, **LABELS), tokenizer(model_max_length=128)
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    for name, labels in (("stock", LABELS), ("other", {})):
        config = BertConfig(vocab_size=101, **{field: getattr(model.config, field) for field in same}, **labels)
        BertForSequenceClassification(config).save_pretrained(tmp_path / name)
    for name in ("mine", "stock"):
        words.save_pretrained(tmp_path / name)
    rows = [f"{text},{('no', 'yes')[number % 2]}" for number, text in enumerate(own_texts(40))]
    (tmp_path / "test.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "texts.txt").write_text("\n".join(own_texts(60)))
    files = {"--checkpoint": "mine", "--evaluate": "test.csv", "--calibrate": "texts.txt"}
    arguments = ["benchmark", "--serving", "--texts", "24", "--rounds", "1", "--contenders", "bert:openvino:int8"]
    arguments += [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    done = CliRunner().invoke(app, [*arguments, "--stock", str(tmp_path / "other")])
    assert "has another vocabulary or other labels than --checkpoint" in str(done.exception)
    target = tmp_path / "serving.json"
    done = CliRunner().invoke(app, [*arguments, "--stock", str(tmp_path / "stock"), "-o", str(target)])
    assert done.exit_code == 0, done.output
    results = json.loads(target.read_text())
    assert results["left_out"] == []
    assert {name: results["settings"][name] for name in ("stock", "calibrate", "texts")} == {
        "stock": "stock",
        "calibrate": "texts.txt",
        "texts": 24,
    }
    assert [row["contender"] for row in results["rows"]] == [serving.REFERENCE, "bert:openvino:int8"] * 3
    assert all(0 <= row["accuracy"] <= 1 for row in results["rows"])  # of the stock's: its weights are given
