"""The benchmark measures what it says, on sizes of seconds."""

import contextlib
import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from common import SCHEMES, tiny_config
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from hf_posenc import POSITIONS, PosEncConfig, PosEncModel, benchmark
from hf_posenc.benchmark import modernbert, run, startup, tables, targets
from hf_posenc.cli import app
from hf_posenc.kernels import switch
from hf_posenc.model.attention import check_bias
from hf_posenc.model.positions import make_position

CARDS = Path(__file__).parent.parent / "model_cards"
TINY = ("--sizes", "tiny", "--rounds", "1", "--device", "cpu")


@pytest.fixture
def pages():
    """What makes the pages, which needs more than a bare image has."""
    from model_cards.generate import pages

    return pages


def lengths_of(work, count):
    return [int(length) for batch in benchmark.make_batches(work, count) for length in batch["attention_mask"].sum(-1)]


def test_batches_have_the_lengths_of_sst2_and_repeat():
    assert 24 < np.mean(lengths_of("sst2", 40)) < 26.5
    batches = benchmark.make_batches("sst2", 40)
    assert 0.45 < np.mean([1 - batch["attention_mask"].float().mean() for batch in batches]) < 0.6
    assert all((batch["input_ids"] > 0).eq(batch["attention_mask"] == 1).all() for batch in batches)
    assert torch.equal(benchmark.make_batches("sst2", 1)[0]["input_ids"], batches[0]["input_ids"])
    assert lengths_of("sst2_sorted", 3) == sorted(lengths_of("sst2", 3)) != lengths_of("sst2", 3)
    assert lengths_of("2x7", 1) == [7, 7]


def test_mixed_batches_hold_short_and_long_documents():
    lengths = lengths_of("mixed", 4)
    assert len(lengths) == 4 * 16
    assert 64 <= min(lengths) < 150
    assert 2000 < max(lengths) <= 4096
    assert 300 < np.median(lengths) < 900  # the logarithm is uniform: sqrt(64 x 4,096) is 512


@pytest.mark.parametrize("name", [*benchmark.PEERS, *(f"{peer}:equal_dropout" for peer in benchmark.PEERS), "rope"])
def test_contenders_have_equal_dimensions(name):
    model = benchmark.build_model(name, "tiny")
    sizes = {name: getattr(model.config, name) for name in benchmark.SIZES["tiny"]}
    assert sizes == benchmark.SIZES["tiny"]
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
    assert [batch for name, batch in seen if name == "a"] == [0, 1, 0, 1, 0, 1]  # each batch warms up once
    assert [name for name, _ in seen[4:8]] == ["a", "b", "b", "a"]


def test_every_contender_has_run_each_batch_before_one_is_timed(monkeypatch):
    made, timed, seen = run.make_step, run.take_turns, []

    def make_step(model, *args):
        step = made(model, *args)
        return lambda batch: (seen.append((type(model).__name__, batch["input_ids"].shape[1])), step(batch))

    monkeypatch.setattr(run, "make_step", make_step)
    monkeypatch.setattr(run, "take_turns", lambda *args, **options: (seen.append(None), timed(*args, **options))[1])
    options = {"sizes": ["tiny"], "works": ["sst2"], "modes": ["inference"], "rounds": 3, "device": "cpu"}
    benchmark.run_benchmark(["bert", "rope"], **options)
    before = [item for item in seen[: seen.index(None)] if item[0] != "Linear"]  # that one checks the mode
    widths = [batch["input_ids"].shape[1] for batch in benchmark.make_batches("sst2", 3)]
    assert len(set(widths)) == 3
    for name in ("BertForSequenceClassification", "PosEncForSequenceClassification", "LinearLayers"):
        assert [width for other, width in before if other == name] == widths


def test_a_step_trains_and_inference_does_not():
    batch = benchmark.make_batches("2x7", 1)[0]
    for mode, moves in (("inference", False), ("training", False), ("step", True)):
        model = benchmark.build_model("none", "tiny")
        before = model.classifier.out_proj.weight.clone()
        benchmark.make_step(model, mode)(batch)
        assert torch.equal(model.classifier.out_proj.weight, before) != moves
        assert model.classifier.out_proj.weight.grad is None


def test_peak_memory_counts_what_a_step_holds():
    megabytes = benchmark.peak_memory(lambda batch: torch.ones(50 * 2**18), {})
    if megabytes is None:
        pytest.skip("this system doesn't say how much memory a process has used")
    assert 45 < megabytes < 80


def test_the_limit_is_the_encoders_linear_layers_on_real_tokens():
    batch = benchmark.make_batches("2x16", 1)[0]
    batch["attention_mask"][1, 8:] = 0  # 24 tokens are real
    model, flops = benchmark.build_model("none", "tiny").model, []
    for module in (benchmark.LinearLayers(benchmark.linear_shapes(model), 24), model):
        step = benchmark.make_step(module.requires_grad_(False), "inference")
        with FlopCounterMode(display=False) as counter:
            step(batch)
        counts = counter.get_flop_counts()
        flops.append(sum(count.get(torch.ops.aten.addmm, 0) for name, count in counts.items() if name == "Global"))
    assert flops[0] == flops[1] > 0


def test_the_command_writes_results_a_table_and_a_plot(tmp_path):
    target = tmp_path / "results" / "benchmark.json"
    arguments = ["benchmark", *TINY, "--contenders", "bert,none,t5", "--works", "2x8", "--rounds", "2"]
    done = CliRunner().invoke(app, [*arguments, "-o", str(target)])
    assert done.exit_code == 0, done.output
    results = json.loads(target.read_text())
    assert len(results["rows"]) == 3 * 2
    assert results["machine"]["torch"] == torch.__version__
    assert {row["ratio"] for row in results["rows"] if row["contender"] == "bert"} == {1.0}
    assert {row["cost"] for row in results["rows"] if row["contender"] == "none"} == {1.0}
    assert all(
        row[name] > 0 for row in results["rows"] for name in ("milliseconds", "tokens_per_second", "linear_share")
    )
    assert target.with_suffix(".md").read_text() == benchmark.speed_table(results) + "\n"
    assert benchmark.speed_table(results) in done.output
    assert target.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: benchmark.make_batches("8by128", 1), r"work='8by128' is unknown\. Give sst2, .*, or ROWSxTOKENS"),
        (lambda: benchmark.make_batches("0x8", 1), r"work='0x8' is unknown"),
        (lambda: benchmark.build_model("bert", "huge"), r"size='huge' is unknown\. Choose one of tiny, mini"),
        (lambda: benchmark.build_model("bert:varlen", "tiny"), r"Variants are .*bert:pure, bert:equal_dropout\.$"),
        (lambda: benchmark.build_model("rope:fast", "tiny"), r"Variants are .*rope:frozen_words, rope:plain\.$"),
        (lambda: benchmark.build_model("rope:plain:quick", "tiny"), r"'rope:plain:quick' is unknown"),
        (lambda: benchmark.run_benchmark(["none", "ropes"], sizes=["tiny"]), "ropes"),
        (lambda: benchmark.make_step(torch.nn.Linear(1, 1), "sleep"), r"mode='sleep' is unknown"),
        (lambda: benchmark.run_benchmark(["none"], dtype="int8"), r"dtype='int8' is unknown\. Choose float32"),
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
    files = sorted((CARDS / "results").glob("benchmark*.json"))
    assert len(files) >= 8
    for path in files:
        results = json.loads(path.read_text())
        assert path.with_suffix(".md").read_text() == f"{tables.results_table(results)}\n"


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


def test_a_contender_that_does_not_run_is_left_out_and_what_is_measured_is_saved(monkeypatch):
    made = benchmark.build_model

    def build(name, *args, **kwargs):
        if name == "modernbert":
            raise ImportError("no such package\nand more")
        return made(name, *args, **kwargs)

    monkeypatch.setattr(run, "build_model", build)
    options = {"sizes": ["tiny"], "works": ["2x8", "3x8"], "modes": ["training"], "rounds": 1, "device": "cpu"}
    lines, saved = [], []
    names = ["none", "modernbert", "modernbert:varlen", "rope:flex_attention"]
    options |= {"report": lines.append, "save": lambda measured: saved.append(len(measured["rows"]))}
    speed = benchmark.run_benchmark(names, **options)
    assert lines[0] == "modernbert is left out of tiny 2x8 training: ImportError: no such package"
    assert saved == [1, 2]
    assert speed["settings"]["contenders"] == ["none"]
    left_out = [(row["work"], row["contender"], row["why"]) for row in speed["left_out"]]
    assert [name for _, name, _ in left_out] == names[1:] * 2
    assert left_out[1][2] == "UserError: varlen attention needs a GPU, and bfloat16 or float16."
    assert "'flex_attention' has no gradients on a CPU" in left_out[2][2]
    assert "`modernbert` is left out of tiny 3x8 training: ImportError: no such package" in benchmark.speed_table(speed)
    with pytest.raises(ValueError, match="The reference 'modernbert' can't be measured: no such package"):
        benchmark.run_benchmark(["modernbert", "none"], **options)


@pytest.mark.parametrize("name", ["rope:eager", "bert:eager", "t5:flex_attention"])
def test_a_variant_names_the_attention_backend(name):
    assert benchmark.build_model(name, "tiny").config._attn_implementation == name.split(":")[1]


@pytest.mark.slow  # measures
def test_the_reference_may_have_the_same_dtype():
    options = {"sizes": ["tiny"], "works": ["2x8"], "modes": ["inference"], "rounds": 1, "device": "cpu"}
    for dtype in ("float32", "bfloat16"):
        results = benchmark.run_benchmark(["bert", "rope"], **options, dtype="bfloat16", reference_dtype=dtype)
        assert [row["dtype"] for row in results["rows"]] == [dtype, "bfloat16"]


def test_plain_runs_without_the_kernels_and_gives_the_same(monkeypatch):
    monkeypatch.setattr(switch, "_enabled", True)
    model, seen = benchmark.build_model("rope:plain", "tiny"), []
    model.register_forward_pre_hook(lambda *_: seen.append(switch._enabled))
    batch = benchmark.make_batches("2x7", 1)[0]
    for variants in ([], ["plain"]):
        benchmark.make_step(model, "inference", variants=variants)(batch)
    assert seen == [True, False]
    assert switch._enabled
    with pytest.raises(ValueError, match="Give exactly one of input_ids"):
        benchmark.make_step(model, "inference", variants=["plain"])({"no": 1})
    assert switch._enabled


def test_pure_trains_the_weights_themselves_in_half_precision():
    batch, dtypes = benchmark.make_batches("2x7", 1)[0], {}
    for name in ("rope", "rope:pure"):
        model = benchmark.build_model(name, "tiny")
        seen = dtypes[name] = []
        layer = next(module for module in model.modules() if isinstance(module, torch.nn.LayerNorm))
        layer.register_forward_hook(lambda module, args, out, seen=seen: seen.append(out.dtype))
        layer.register_forward_pre_hook(lambda *_, seen=seen: seen.append(torch.is_autocast_enabled("cpu")))
        benchmark.make_step(model, "step", torch.bfloat16, name.split(":")[1:])(batch)
        seen.append(model.classifier.out_proj.weight.dtype)
    assert dtypes == {"rope": [True, torch.float32, torch.float32], "rope:pure": [False, *[torch.bfloat16] * 2]}


@pytest.mark.parametrize("name", [*benchmark.PEERS, "rope", "t5:frozen_words"])
def test_no_dropout_means_none_in_any_contender(name):
    def rates(dropout):
        model = benchmark.build_model(name, "tiny", dropout=dropout)
        fields = {field: value for field, value in model.config.to_dict().items() if "dropout" in field}
        rest = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
        return [value for value in (*fields.values(), *rest) if value]

    assert rates(False) == []
    assert bool(rates(True)) == (name in ("bert", "roformer", "rope", "t5:frozen_words"))


def written_out(q, k, v, cuts, other_cuts, longest, other_longest, *, scale, window_size):
    """What PyTorch's varlen attention computes, which runs on a GPU alone."""
    assert torch.equal(cuts, other_cuts)
    assert cuts.dtype == torch.int32
    lengths = cuts.diff().tolist()
    assert max(lengths) == longest == other_longest
    outs = []
    for a, b, c in zip(*(t.split(lengths) for t in (q, k, v)), strict=True):
        place = torch.arange(len(a))
        apart = (place[:, None] - place[None]).abs()
        logits = torch.einsum("ihd,jhd->hij", a, b) * scale
        if window_size != (-1, -1):
            assert window_size[0] == window_size[1]
            logits = logits.masked_fill(apart > window_size[0], -torch.inf)
        outs.append(torch.einsum("hij,jhd->ihd", logits.softmax(-1), c))
    return torch.cat(outs)


@pytest.mark.parametrize("variant", ["", ":global"])
def test_unpadded_modernbert_gives_modernberts_logits_windows_and_all(variant, monkeypatch):
    monkeypatch.setattr(modernbert, "varlen_attn", written_out)
    batch = benchmark.make_batches("3x150", 1)[0]  # windows are 64 to each side
    batch["attention_mask"][1, 9:] = batch["attention_mask"][2, 80:] = 0
    models = [benchmark.build_model(f"modernbert{how}{variant}", "mini").eval() for how in (":sdpa", ":varlen")]
    with torch.no_grad():
        padded, unpadded = (model(**batch) for model in models)
    torch.testing.assert_close(unpadded.logits, padded.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(unpadded.loss, padded.loss, atol=1e-5, rtol=1e-5)
    windows = {layer.attn.sliding_window for layer in models[0].model.layers}
    assert windows == ({None} if variant else {None, 65})


def test_windowed_attention_refuses_dropout():
    q = torch.zeros(1, 2, 4, 8)
    with pytest.raises(ValueError, match=r"takes no mask and no dropout, and dropout=0\.1\. Use --no-dropout"):
        modernbert.windowed_varlen_attention(torch.nn.Module(), q, q, q, None, 1.0, dropout=0.1)


@pytest.mark.parametrize("name", ["bert", "modernbert", "nomic_bert", "rope", "t5", "mlp_bias"])
def test_flops_are_those_that_pytorch_counts(name):
    """Gated layers too; without windows, which PyTorch's counter doesn't see."""
    name += ":global:eager" if name == "modernbert" else ":eager"
    model = benchmark.build_model(name, "tiny").eval()
    layers = max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=lambda m: len(str(m)))
    batch = benchmark.make_batches("2x40", 1)[0]
    with FlopCounterMode(display=False, depth=None) as counter, torch.no_grad():
        model(**batch)
    table = counter.get_flop_counts()
    prefix = next(n for n, m in model.named_modules() if m is layers)
    stem = f"{type(model).__name__}.{prefix}."
    counted = sum(sum(v.values()) for n, v in table.items() if n.startswith(stem) and n.count(".") == stem.count("."))
    assert counted == benchmark.count_flops(model, batch, "inference") > 0
    assert benchmark.count_flops(model, batch, "training") == 3 * counted


def test_a_gated_network_counts_with_its_three_layers():
    model = PosEncModel(tiny_config("rope", mlp_gated=True, mlp_bias=False))
    assert sum(width * inner for width, inner in benchmark.linear_shapes(model)) == 2 * (4 * 32 * 32 + 3 * 32 * 48)


def test_flops_of_a_window_are_those_of_the_pairs_in_it():
    model = benchmark.build_model("modernbert", "mini")  # layers 0 and 3 attend to all
    batch = benchmark.make_batches("2x150", 1)[0]
    batch["attention_mask"][1, 40:] = 0
    everywhere = benchmark.count_flops(benchmark.build_model("modernbert:global", "mini"), batch, "inference")
    place = torch.arange(150)
    outside = int(((place[:, None] - place[None]).abs() > 64).sum())
    assert everywhere - benchmark.count_flops(model, batch, "inference") == 2 * outside * 4 * 256


def event(name, parent=None, kernels=(), spent=0, on_device=0):
    pairs = [SimpleNamespace(name=kernel, duration=duration) for kernel, duration in kernels]
    times = {"self_cpu_time_total": spent, "self_device_time_total": on_device or sum(time for _, time in kernels)}
    return SimpleNamespace(name=name, cpu_parent=parent, kernels=pairs, **times)


def test_kernels_count_once_at_the_operation_that_launched_them():
    linear = event("aten::linear")
    varlen = event("torch_attn::_varlen_attn")
    adam = event("Optimizer.step#AdamW.step")
    graph = event("## Call CompiledFxGraph f3 ##")
    events = [
        linear,
        event("aten::addmm", linear, [("sm90_xmma_gemm_bf16", 3000)]),
        varlen,
        event("aten::_flash_attention_forward", varlen, [("void pytorch_flash::flash_fwd_kernel<>", 2000)]),
        event("_efficient_attention", None, [("fmha_cutlassF_bf16_aligned_64x64", 500)]),
        event("cuLaunchKernel", graph, [("triton_tem_fused_mul_0", 700)]),
        event("cuLaunchKernel", graph, [("triton_poi_fused_add_1", 90)]),
        event("aten::_fused_adamw_", adam, [("multi_tensor_apply_kernel", 400)]),
        # The device's own list: the kernels again, and the range of an annotation around them.
        event("sm90_xmma_gemm_bf16", on_device=3000),
        event("void pytorch_flash::flash_fwd_kernel<>", on_device=2000),
        event("Optimizer.step#AdamW.step", on_device=9000),
    ]
    spent = benchmark.sum_parts(events, on_cuda=True)
    shown = {part: value for part, value in spent.items() if value}
    assert shown == {"linear layers": 3.0, "attention": 3.2, "optimizer": 0.4}
    own_times = [event("aten::linear", spent=10), event("aten::addmm", linear, spent=50)]
    assert benchmark.sum_parts(own_times, on_cuda=False)["linear layers"] == pytest.approx(0.06)


def rows_of_targets(**changes):
    speeds = dict.fromkeys(("rope", "modernbert:varlen", "alibi:flex_attention", "t5:flex_attention"), 1.0)
    speeds |= {"kerple:flex_attention": 0.8, "bert": 0.5} | changes
    memory = {"4x8192": 1024, "1x8192": 1024, "1x32768": 4096, "sst2": None, "mixed": None}
    return [
        {"work": work, "contender": name, "mode": "training", "ratio": ratio, "peak_mb": megabytes}
        for work, megabytes in memory.items()
        for name, ratio in speeds.items()
    ]


def test_targets_pass_at_their_bounds_and_fail_beyond():
    assert {row["outcome"] for row in benchmark.judge(rows_of_targets())} == {"pass"}
    assert len(benchmark.TARGETS) == 8
    for name, speed, count in (("modernbert:varlen", 1.1, 2), ("bert", 0.6, 2), ("t5:flex_attention", 0.7, 1)):
        judged = benchmark.judge(rows_of_targets(**{name: speed}))
        failed = [row["target"] for row in judged if row["outcome"] == "fail"]
        assert len(failed) == count
        assert all(name in target for target in failed)
    rows = rows_of_targets()
    for row in rows:
        if row["work"] == "1x32768":
            row["peak_mb"] *= 4  # the memory of T^2
    assert [row["outcome"] for row in benchmark.judge(rows)] == ["pass"] * 7 + ["fail"]
    assert {row["outcome"] for row in benchmark.judge([])} == {"not measured"}
    assert {row["outcome"] for row in benchmark.judge([{**row, "mode": "step"} for row in rows])} == {"not measured"}


def test_every_target_has_its_contenders_in_the_plan():
    planned = {(work, name) for group in targets.GROUPS for work in group["works"] for name in group["contenders"]}
    wanted = []

    class Rows(dict):
        def __missing__(self, key):
            wanted.append(key)
            return {"ratio": 1.0, "peak_mb": 1.0}

    for target in benchmark.TARGETS:
        target.value(Rows())
    assert set(wanted) <= planned
    assert len(wanted) == 16
    for name in {name for _, name in planned}:
        if "flash" not in name:
            benchmark.build_model(name, "tiny", device="meta")


def test_the_targets_command_judges_and_says_so_by_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(targets, "GROUPS", ({"works": ("2x8",), "contenders": ("rope", "rope:pure")},))
    target = tmp_path / "gpu.json"
    done = CliRunner().invoke(app, ["benchmark", *TINY, "--targets", "-o", str(target)])
    results = json.loads(target.read_text())
    assert done.exit_code == 1
    assert {row["outcome"] for row in results["targets"]} == {"not measured"}
    assert benchmark.targets_table(results) in done.output
    assert [(row["mode"], row["dtype"]) for row in results["rows"]] == [("training", "bfloat16")] * 2
    assert results["settings"]["dropout"] is False


def test_results_are_written_under_the_machines_own_name(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_posenc.machine.processor", lambda: "ACME 9 (family 7, model 5)")
    arguments = ["benchmark", *TINY, "--contenders", "none", "--works", "1x8", "--modes", "inference"]
    done = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "on_{processor}.json")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "on_acme-9-family-7-model-5.json").is_file()


def test_frozen_words_get_no_gradient_and_the_rest_does():
    model = benchmark.build_model("rope:frozen_words", "tiny")
    model(**benchmark.make_batches("2x7", 1)[0]).loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == ["model.embeddings.word_embeddings.weight"]


@pytest.mark.slow
def test_startup_is_measured_in_fresh_processes(tmp_path, monkeypatch):
    monkeypatch.delitem(startup.IMPORTS, "and its BERT")
    results = benchmark.measure_startup("tiny", rounds=1)
    assert set(results["seconds"]) == {*startup.IMPORTS, "load BERT", "load ours"}
    assert all(seconds > 0 for seconds in results["seconds"].values())
    assert benchmark.write_results(results, tmp_path / "startup.json")[1].read_text().count("|") == 18


def test_the_page_on_speed_shows_the_measured_numbers(pages, tmp_path, monkeypatch):
    guide = (CARDS.parent / "docs/speed.md").read_text()
    assert "Measured on an AMD EPYC, 2 threads" in guide
    profiled = {
        (row["work"], row["mode"], row["contender"]): row["parts"]["linear layers"]
        for row in pages.read_results(CARDS, "benchmark_profile")["rows"]
    }
    slower = profiled["8x128", "inference", "bert"] / profiled["8x128", "inference", "rope"]
    assert f"take\n{slower:.1f} times as long in inference" in guide
    for name in set(POSITIONS) - set(SCHEMES):  # of other tests
        monkeypatch.delitem(POSITIONS, name)
    for path, text in pages.render_pages(CARDS).items():
        assert path.read_text(encoding="utf-8") == text, "run `make cards`"
    (tmp_path / "model_cards").mkdir()
    with pytest.raises(OSError, match=r"benchmark\.json"):
        pages.render_pages(tmp_path / "model_cards")


def test_the_pages_show_each_processor_and_the_gpu_once_it_is_measured(pages, tmp_path):
    theirs = json.loads(next((CARDS / "results").glob("benchmark_on_*17.json")).read_text())
    (tmp_path / "results").mkdir()
    for name in ("one", "two"):
        theirs["machine"]["processor"] = f"ACME {name}"
        (tmp_path / "results" / f"benchmark_on_acme-{name}.json").write_text(json.dumps(theirs))
    assert [part.split(",")[0] for part in pages.processor_tables(tmp_path)[1::2]] == ["ACME one", "ACME two"]
    assert pages.gpu_tables(tmp_path) == "Nothing has been measured on a GPU yet."
    theirs["machine"]["gpu"], theirs["targets"] = "ACME G1", benchmark.judge(rows_of_targets(bert=0.6))
    (tmp_path / "results" / "benchmark_gpu.json").write_text(json.dumps(theirs))
    shown = pages.gpu_tables(tmp_path)
    assert shown.startswith("Measured on one ACME G1, ")
    assert "| `rope` / `bert`, tokens per second, sst2 | 1.67 | >= 2.0 | fail |" in shown
    assert shown.count("| pass |") == 6
    assert benchmark.speed_table({name: theirs[name] for name in ("settings", "rows")}) in shown


def test_the_table_of_attentions_says_what_the_encoder_does(pages):
    refused = {}
    for row in pages.attention_table().splitlines()[2:]:
        schemes, *_, flex, flash = [cell.strip() for cell in row.strip("|").split("|")]
        for name in schemes.replace("`", "").split(", "):
            refused[name] = (flex.startswith("refused"), flash.startswith("refused"))
    assert set(SCHEMES) <= set(refused)
    for name, refusals in refused.items():
        scheme = make_position(PosEncConfig(position_embedding_type=name))
        for backend, is_refused in zip(("flex_attention", "flash_attention_2"), refusals, strict=True):
            with pytest.raises(ValueError, match=backend) if is_refused else contextlib.nullcontext():
                check_bias(backend, scheme)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("variant", ["", ":global"])
def test_unpadded_modernbert_on_a_gpu_gives_the_padded_logits(variant):
    batch = benchmark.make_batches("3x150", 1, "cuda")[0]
    batch["attention_mask"][1, 9:] = batch["attention_mask"][2, 80:] = 0
    with torch.no_grad():
        names = (f"modernbert{how}{variant}" for how in (":sdpa", ":varlen"))
        models = (benchmark.build_model(name, "mini", device="cuda") for name in names)
        padded, unpadded = (model.eval().bfloat16()(**batch).logits for model in models)
    torch.testing.assert_close(unpadded, padded, atol=0.03, rtol=0.03)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", ["rope", "t5:flex_attention", "modernbert:varlen"])
def test_the_parts_of_a_step_on_a_gpu_are_no_more_than_the_step(name):
    batch = benchmark.make_batches("sst2", 1, "cuda")[0]
    model = benchmark.build_model(name, "mini", device="cuda", dropout=False)
    step = benchmark.make_step(model, "training", torch.bfloat16)
    step(batch)
    kernels, activity = 0.0, torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profiler:
        step(batch)
        torch.cuda.synchronize()
    for item in profiler.events():
        if item.device_type == torch.autograd.DeviceType.CUDA and not getattr(item, "is_user_annotation", False):
            kernels += item.self_device_time_total / 1000
    spent = benchmark.sum_parts(profiler.events(), on_cuda=True)
    assert spent["linear layers"] > 0
    assert spent["attention"] > 0
    assert 0.3 * kernels < sum(spent.values()) <= 1.01 * kernels
