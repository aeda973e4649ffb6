"""The benchmark measures what it says, on sizes of seconds."""

import json
import time
from pathlib import Path

import pytest
import torch
from common import SCHEMES

from hf_posenc import POSITIONS, benchmark
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


def test_the_limit_is_the_encoders_linear_layers_on_real_tokens():
    from torch.utils.flop_counter import FlopCounterMode

    batch = benchmark.make_batches("2x16", 1)[0]
    batch["attention_mask"][1, 8:] = 0  # 24 tokens are real
    model, flops = benchmark.build_model("none", "tiny").model, []
    for module in (benchmark.LinearLayers("tiny", 24), model):
        step = benchmark.make_step(module.requires_grad_(False), "inference")
        with FlopCounterMode(display=False) as counter:
            step(batch)
        counts = counter.get_flop_counts()
        flops.append(sum(count.get(torch.ops.aten.addmm, 0) for name, count in counts.items() if name == "Global"))
    assert flops[0] == flops[1] > 0


def test_sorted_batches_hold_the_same_sentences():
    lengths = [
        [int(n) for batch in benchmark.make_batches(work, 3) for n in batch["attention_mask"].sum(-1)]
        for work in ("sst2", "sst2_sorted")
    ]
    assert lengths[1] == sorted(lengths[0]) != lengths[0]


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
    assert all(row["linear_share"] > 0 for row in found["rows"])
    assert target.with_suffix(".md").read_text() == benchmark.speed_table(found) + "\n"
    assert benchmark.speed_table(found) in done.output
    assert target.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: benchmark.make_batches("8by128", 1),
            r"work='8by128' is unknown\. Give sst2, sst2_sorted, or ROWSxTOKENS",
        ),
        (lambda: benchmark.make_batches("0x8", 1), r"work='0x8' is unknown"),
        (lambda: benchmark.build_model("bert", "huge"), r"size='huge' is unknown\. Choose one of tiny, mini"),
        (
            lambda: benchmark.build_model("bert:fast", "tiny"),
            r"'bert:fast' is unknown\. Variants are bert:equal_dropout, ",
        ),
        (
            lambda: benchmark.build_model("rope:fast", "tiny"),
            r"'rope:fast' is unknown\. Variants are rope:frozen_words, ",
        ),
        (lambda: benchmark.build_model("ropes", "tiny"), "ropes"),
        (lambda: benchmark.make_step(torch.nn.Linear(1, 1), "sleep"), r"mode='sleep' is unknown"),
        (lambda: benchmark.run_benchmark(["none"], dtype="int8"), r"dtype='int8' is unknown\. Choose float32"),
        (lambda: benchmark.run_benchmark([]), r"'contenders': \[\].*give at least one of each"),
        (lambda: benchmark.run_benchmark(["none"], sizes=[]), r"'sizes': \[\].*give at least one of each"),
        (lambda: benchmark.run_benchmark(["none"], modes=["inference", "sleep"]), "mode='sleep' is unknown"),
        (lambda: benchmark.run_benchmark(["none"], device="gpu"), "device='gpu' can't be used. Here it is cpu"),
        (lambda: benchmark.run_benchmark(["none"], reference_dtype="int8"), "reference_dtype='int8' is unknown"),
        (lambda: benchmark.write_results({}, "results.txt"), r"'results\.txt' doesn't end in \.json"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_committed_tables_show_the_committed_numbers():
    results = Path(__file__).parent.parent / "model_cards" / "results"
    files = sorted(results.glob("benchmark*.json"))
    assert len(files) >= 8
    for path in files:
        found = json.loads(path.read_text())
        table = benchmark.startup_table(found) if "seconds" in found else benchmark.speed_table(found)
        assert path.with_suffix(".md").read_text() == f"{table}\n"


def test_the_parts_of_a_step_add_up_and_name_what_runs():
    batch = benchmark.make_batches("8x32", 1)[0]
    step = benchmark.make_step(benchmark.build_model("rope", "tiny"), "step")
    parts = benchmark.profile_parts(step, batch, repeats=1)
    assert set(parts) == {*benchmark.PARTS, "other"}
    assert [name for name, spent in parts.items() if spent <= 0] in ([], ["other"])
    evaluated = benchmark.profile_parts(benchmark.make_step(benchmark.build_model("none", "tiny"), "inference"), batch)
    assert evaluated["rotation"] == evaluated["optimizer"] == 0
    assert evaluated["dropout"] < 0.1 * sum(evaluated.values())  # the calls that find it off
    assert evaluated["linear layers"] > 0.1 * sum(evaluated.values())  # far more, but for what other programs do


def test_a_contender_whose_package_is_missing_is_left_out_and_what_is_measured_is_saved(monkeypatch):
    made = benchmark.build_model

    def build(name, *args, **kwargs):
        if name == "modernbert":
            raise ImportError("no such package\nand more")
        return made(name, *args, **kwargs)

    monkeypatch.setattr(benchmark, "build_model", build)
    options = {"sizes": ["tiny"], "works": ["2x8", "3x8"], "modes": ["inference"], "rounds": 1, "device": "cpu"}
    lines, saved = [], []
    benchmark.run_benchmark(
        ["none", "modernbert"], **options, report=lines.append, save=lambda found: saved.append(len(found["rows"]))
    )
    assert lines[0] == "modernbert is left out: no such package"
    assert saved == [1, 2]
    with pytest.raises(ValueError, match="The reference 'modernbert' can't be built: no such package"):
        benchmark.run_benchmark(["modernbert", "none"], **options)


def test_a_variant_names_the_attention_backend():
    for name in ("rope:eager", "bert:eager", "t5:flex_attention"):
        assert benchmark.build_model(name, "tiny").config._attn_implementation == name.split(":")[1]


@pytest.mark.slow  # measures
def test_the_reference_may_have_the_same_dtype():
    found = benchmark.run_benchmark(
        ["bert", "rope"], sizes=["tiny"], works=["2x8"], modes=["inference"], dtype="bfloat16", rounds=1, device="cpu"
    )
    assert [row["dtype"] for row in found["rows"]] == ["float32", "bfloat16"]
    found = benchmark.run_benchmark(
        ["bert", "rope"],
        sizes=["tiny"],
        works=["2x8"],
        modes=["inference"],
        rounds=1,
        device="cpu",
        dtype="bfloat16",
        reference_dtype="bfloat16",
    )
    assert [row["dtype"] for row in found["rows"]] == ["bfloat16", "bfloat16"]


def test_frozen_words_get_no_gradient_and_the_rest_does():
    model = benchmark.build_model("rope:frozen_words", "tiny")
    model(**benchmark.make_batches("2x7", 1)[0]).loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == ["model.embeddings.word_embeddings.weight"]


@pytest.mark.slow
def test_startup_is_measured_in_fresh_processes(tmp_path, monkeypatch):
    monkeypatch.delitem(benchmark._IMPORTS, "and its BERT")
    found = benchmark.measure_startup("tiny", rounds=1)
    assert set(found["seconds"]) == {*benchmark._IMPORTS, "load BERT", "load ours"}
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert benchmark.write_results(found, tmp_path / "startup.json")[1].read_text().count("|") == 18


def test_the_page_on_speed_shows_the_measured_numbers(tmp_path, monkeypatch):
    from model_cards.generate import pages
    from model_cards.generate.cards import FOLDER

    guide = (FOLDER.parent / "docs/speed.md").read_text()
    assert "Measured on an AMD EPYC, 2 threads" in guide
    profiled = {
        (row["work"], row["mode"], row["contender"]): row["parts"]["linear layers"]
        for row in pages.read_results(FOLDER, "benchmark_profile")["rows"]
    }
    slower = profiled["8x128", "inference", "bert"] / profiled["8x128", "inference", "rope"]
    assert f"take\n{slower:.1f} times as long in inference" in guide
    for name in set(POSITIONS) - set(SCHEMES):  # of other tests
        monkeypatch.delitem(POSITIONS, name)
    for path, text in pages.render_pages(FOLDER).items():
        assert path.read_text(encoding="utf-8") == text, "run `make cards`"
    (tmp_path / "model_cards").mkdir()
    with pytest.raises(OSError, match=r"benchmark\.json"):
        pages.render_pages(tmp_path / "model_cards")
