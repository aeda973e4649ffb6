"""The benchmark measures what it says, on sizes of seconds."""

import json
import time
from pathlib import Path

import pytest
import torch

from hf_posenc import benchmark
from hf_posenc.cli import app


def test_batches_have_the_lengths_of_sst2_and_repeat():
    batches = benchmark.make_batches("sst2", 40)
    lengths = torch.cat([batch["attention_mask"].sum(-1) for batch in batches]).float()
    assert 24 < lengths.mean() < 26.5
    padding = [1 - batch["attention_mask"].float().mean().item() for batch in batches]
    assert 0.45 < sum(padding) / 40 < 0.6
    assert all((batch["input_ids"] > 0).eq(batch["attention_mask"] == 1).all() for batch in batches)
    again = benchmark.make_batches("sst2", 1)[0]
    assert torch.equal(again["input_ids"], batches[0]["input_ids"])
    assert benchmark.make_batches("2x7", 1)[0]["attention_mask"].tolist() == [[1] * 7] * 2


@pytest.mark.parametrize("name", [*benchmark.PEERS, *(f"{peer}:equal_dropout" for peer in benchmark.PEERS), "rope"])
def test_contenders_have_equal_dimensions(name):
    model = benchmark.build_model(name, "tiny")
    assert model.config.hidden_size == 128
    assert model.config.num_hidden_layers == 2
    assert model.config.num_attention_heads == 2
    assert model.get_input_embeddings().weight.shape == (30_522, 128)
    if name.endswith("dropout"):
        field = "attention_dropout" if "modern" in name else "attention_probs_dropout_prob"
        assert getattr(model.config, field) == 0


def test_turns_compare_within_a_turn_and_warm_up_first():
    seen = []

    def sleeper(name, seconds):
        return lambda batch: (seen.append((name, batch)), time.sleep(seconds))

    seconds = benchmark.take_turns({"a": sleeper("a", 0.06), "b": sleeper("b", 0.005)}, [0, 1], rounds=4)
    assert [len(taken) for taken in seconds.values()] == [4, 4]
    assert benchmark.ratio(seconds["a"], seconds["b"]) > 2
    assert [batch for name, batch in seen if name == "a"] == [1, 0, 1, 0, 1]  # the first one warms up
    assert [name for name, _ in seen[2:6]] == ["a", "b", "b", "a"]


def test_a_step_trains_and_inference_does_not():
    batch = benchmark.make_batches("2x7", 1)[0]
    for mode, moves in (("inference", False), ("training", False), ("step", True)):
        model = benchmark.build_model("none", "tiny")
        before = model.classifier.weight.clone()
        benchmark.make_step(model, mode)(batch)
        assert torch.equal(model.classifier.weight, before) != moves
        assert model.classifier.weight.grad is None


def test_peak_memory_counts_what_a_step_holds():
    megabytes = benchmark.peak_memory(lambda batch: torch.ones(50 * 2**18), {})
    if megabytes is None:
        pytest.skip("this system doesn't say how much memory a process has used")
    assert 45 < megabytes < 80


def test_flops_are_counted_on_real_tokens():
    from torch.utils.flop_counter import FlopCounterMode

    batch = benchmark.make_batches("2x16", 1)[0]
    model = benchmark.build_model("none", "tiny")
    model.set_attn_implementation("eager")  # the counter doesn't know the fused kernel
    with FlopCounterMode(display=False) as counter:
        benchmark.make_step(model, "inference")(batch)
    assert benchmark.useful_flops(batch, "tiny", "inference") == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_the_command_writes_results_a_table_and_a_plot(tmp_path):
    from typer.testing import CliRunner

    target = tmp_path / "results" / "benchmark.json"
    arguments = ["--contenders", "bert,none,t5", "--sizes", "tiny", "--works", "2x8", "--rounds", "2"]
    done = CliRunner().invoke(app, ["benchmark", *arguments, "--device", "cpu", "-o", str(target)])
    assert done.exit_code == 0, done.output
    found = json.loads(target.read_text())
    assert len(found["rows"]) == 3 * 2
    assert found["machine"]["torch"] == torch.__version__
    assert {row["ratio"] for row in found["rows"] if row["contender"] == "bert"} == {1.0}
    assert {row["cost"] for row in found["rows"] if row["contender"] == "none"} == {1.0}
    assert all(row["milliseconds"] > 0 and row["tokens_per_second"] > 0 for row in found["rows"])
    assert all(0 < row["matmul_share"] < 1 for row in found["rows"])
    assert target.with_suffix(".md").read_text() == benchmark.markdown_table(found) + "\n"
    assert benchmark.markdown_table(found) in done.output
    assert target.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: benchmark.make_batches("8by128", 1), r"work='8by128' is unknown\. Give sst2, or ROWSxTOKENS"),
        (lambda: benchmark.make_batches("0x8", 1), r"work='0x8' is unknown"),
        (lambda: benchmark.build_model("bert", "huge"), r"size='huge' is unknown\. Choose one of tiny, mini"),
        (lambda: benchmark.build_model("bert:fast", "tiny"), r"'bert:fast' is unknown\. The only variant is bert:"),
        (lambda: benchmark.build_model("rope:fast", "tiny"), r"'rope:fast' is unknown\. The only variant is rope:"),
        (lambda: benchmark.build_model("ropes", "tiny"), "ropes"),
        (lambda: benchmark.make_step(torch.nn.Linear(1, 1), "sleep"), r"mode='sleep' is unknown"),
        (lambda: benchmark.run_benchmark(["none"], dtype="int8"), r"dtype='int8' is unknown\. Choose float32"),
        (lambda: benchmark.run_benchmark([]), r"contenders=\[\]"),
        (lambda: benchmark.write_results({}, "results.txt"), r"'results\.txt' doesn't end in \.json"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_readme_shows_the_measured_ratios():
    root = Path(__file__).parent.parent
    found = json.loads((root / "model_cards" / "results" / "benchmark.json").read_text())
    assert benchmark.ratio_table(found) in (root / "README.md").read_text()
    for name in ("benchmark", "benchmark_bfloat16"):
        found = json.loads((root / "model_cards" / "results" / f"{name}.json").read_text())
        shown = (root / "model_cards" / "results" / f"{name}.md").read_text()
        assert shown == benchmark.markdown_table(found) + "\n"
