"""The benchmark measures what it says, on sizes of seconds."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch

from hf_posenc import SCHEMES, UserError, kernels
from model_cards.benchmark import contenders, host, modernbert, run, targets, work
from tests import gpu
from tests.support.common import BUILTIN, encoder, tiny_classifier, tokens, write_csv
from tests.support.references import varlen_attention

CARDS = Path(__file__).parents[2] / "model_cards"
PAGE = CARDS / "speed.md"
TINY = {"sizes": ("tiny",), "rounds": 2, "device": "cpu"}


@pytest.fixture
def pages():
    """What makes the pages, which needs more than a bare image has."""
    from model_cards import make_pages

    return make_pages


@pytest.mark.parametrize("name", [*contenders.PEERS, "bert:equal_dropout", "rope"])
def test_contenders_have_equal_dimensions(name):
    model = contenders.build_model(name, "tiny", dropout=False)
    assert {name: getattr(model.config, name) for name in contenders.SIZES["tiny"]} == contenders.SIZES["tiny"]
    assert model.get_input_embeddings().weight.shape == (30_522, 128)
    fields = {
        field: value
        for field, value in model.config.to_dict().items()
        if "dropout" in field and field != "token_dropout"
    }
    assert not any(fields.values())
    assert not any(module.p for module in model.modules() if isinstance(module, torch.nn.Dropout))


def test_plain_runs_without_the_kernels(monkeypatch):
    monkeypatch.setattr(kernels.switch, "_enabled", True)
    model, seen = contenders.build_model("rope:plain", "tiny"), []
    model.register_forward_pre_hook(lambda *_: seen.append(kernels.switch._enabled))
    for with_kernels in (True, False):
        contenders.make_step(model, "training", with_kernels=with_kernels)(work.make_batches("2x7", 1)[0])
    assert seen == [True, False]
    assert kernels.switch._enabled


@pytest.mark.slow
def test_a_row_says_what_was_measured_and_who_cannot_run_is_left_out(monkeypatch, capsys):
    names = ("bert", "none", "rope:frozen_words", "rope:fast")
    settings = run.Settings(contenders=names, works=("2x8",), modes=("step",), **TINY)
    results = run.run_benchmark(settings)
    assert [row["contender"] for row in results["rows"]] == results["settings"]["contenders"] == list(names[:3])
    bert, none, _ = results["rows"]
    assert bert["ratio"] == none["cost"] == 1
    for row in results["rows"]:
        assert all(row[name] > 0 for name in ("milliseconds", "cost", "tokens_per_second", "linear_share"))
    assert [row["contender"] for row in results["left_out"]] == ["rope:fast"]
    assert "rope:fast is left out of tiny 2x8 step: UserError: 'rope:fast' is unknown" in capsys.readouterr().err
    with pytest.raises(ValueError, match="The reference 'rope:fast' can't be measured"):
        run.run_benchmark(run.Settings(contenders=names[::-1], works=("2x8",), **TINY))


def answers_of_modernbert(device="cpu", dtype=torch.float32):
    """Padded and unpadded logits."""
    batch = work.make_batches("3x150", 1, device)[0]  # windows are 64 to each side
    batch["attention_mask"][1, 9:] = batch["attention_mask"][2, 80:] = 0
    models = [contenders.build_model(name, "mini", device=device) for name in ("modernbert", "modernbert:varlen")]
    with torch.no_grad():
        return [model.eval().to(dtype)(**batch).logits for model in models]


def test_unpadded_modernbert_gives_modernberts_logits(monkeypatch):
    monkeypatch.setattr(modernbert, "varlen_attn", varlen_attention)
    padded, unpadded = answers_of_modernbert()
    torch.testing.assert_close(unpadded, padded, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_unpadded_modernbert_on_a_gpu_gives_the_padded_logits():
    padded, unpadded = answers_of_modernbert("cuda", torch.bfloat16)
    torch.testing.assert_close(unpadded, padded, atol=0.03, rtol=0.03)


def planned_rows(**ratios):
    """A row of each contender on each work, as fast as the targets want at least."""
    speeds = {"rope": 1.65, "bert": 1.0, "rope:compiled": 1.0, "bert:compiled": 1.0, "modernbert:varlen": 1.5} | ratios
    rows = []
    for group in targets.GROUPS:
        for size, place, name in itertools.product(group.get("sizes", ["base"]), group["works"], group["contenders"]):
            speed = 2 * speeds["bert"] if (place, name) == ("mixed", "rope") else speeds.get(name, 1.0)
            row = {"size": size, "work": place, "contender": name, "ratio": speed, "peak_mb": 1.0}
            rows.append(row | ({"peak_mb": float(place.split("x")[1])} if place in ("1x8192", "1x32768") else {}))
    return rows


def test_targets_pass_at_their_bounds_and_fail_beyond():
    assert {row["outcome"] for row in targets.judge(planned_rows())} == {"pass"}
    for name, many in {"bert": 3, "bert:compiled": 1, "modernbert:varlen": 2, "deberta-v2": 2}.items():
        judged = targets.judge(planned_rows(**{name: 1.9}))
        failed = [row["target"] for row in judged if row["outcome"] == "fail"]
        assert len(failed) == many
        assert all(f"`{name}`" in target for target in failed)
    rows = planned_rows()
    for row in rows:
        row["peak_mb"] **= 2
    assert [row["outcome"] for row in targets.judge(rows)] == ["pass"] * (len(targets.TARGETS) - 1) + ["fail"]
    assert {row["outcome"] for row in targets.judge([])} == {"not measured"}


def test_what_was_measured_is_kept_when_a_later_group_fails(monkeypatch, tmp_path):
    groups = (
        {"contenders": ("none", "rope"), "works": ("2x8", "sst2:2")},
        {"contenders": ("bort",), "works": ("2x8",)},
    )
    monkeypatch.setattr(targets, "GROUPS", groups)
    with pytest.raises(UserError, match="bort"):
        targets.run_targets(str(tmp_path / "gpu.json"), rounds=1, device="cpu", sizes=("tiny",), dtype="float32")
    kept = json.loads((tmp_path / "gpu.json").read_text())
    places = [(row["work"], row["contender"]) for row in kept["rows"]]
    assert places == [(place, name) for place in ("2x8", "sst2:2") for name in ("none", "rope")]
    assert len(kept["targets"]) == len(targets.TARGETS)


@pytest.mark.parametrize(("scheme", "a_layer", "outside"), [("none", 68, 69), ("rope", 78, 76)])
def test_a_step_launches_no_more_operations_than_before(scheme, a_layer, outside):
    """Short texts take a GPU as long as its host needs to launch these; operations that PyTorch adds, BERT has too."""
    counted, of_bert = host.count_operations(scheme), host.count_operations("bert")
    assert counted[0] <= a_layer + max(0, of_bert[0] - 75)
    assert counted[1] <= outside + max(0, of_bert[1] - 54)


@pytest.mark.slow
def test_serving_is_measured_on_the_texts_of_a_file(tmp_path, monkeypatch):
    from model_cards.benchmark import serving  # which needs more than a bare image has
    from model_cards.benchmark.timing import time_job

    texts, target = [f"a film that {number} of us saw" for number in range(40)], tmp_path / "serving.json"
    tiny_classifier(tmp_path / "mine", texts, ("no", "yes"), max_position_embeddings=128)
    rows = [{"text": text, "label": ("no", "yes")[number % 2]} for number, text in enumerate(texts)]
    asked = (serving.REFERENCE, "bert:torch:float32", "posenc:torch:float32")
    measure = serving.run_serving
    monkeypatch.setattr(serving, "_ROUNDS", 1)
    monkeypatch.setattr(serving, "_run_alone", time_job)  # a process takes longer to start than all else
    monkeypatch.setattr(serving, "run_serving", lambda *files: measure(*files, asked))
    data = write_csv(tmp_path / "test.csv", rows)
    words = ["serving", "--checkpoint", str(tmp_path / "mine"), "--evaluate", data, "-o", str(target)]
    monkeypatch.setattr("sys.argv", words)
    serving.main()
    measured = json.loads(target.read_text())["rows"]
    assert len(measured) == 3 * len(asked)
    assert all(row["milliseconds"] > 0 for row in measured)


@pytest.mark.slow
def test_the_page_on_speed_shows_the_measured_numbers(pages, monkeypatch):
    guide = (CARDS.parent / "docs/speed.md").read_text()
    assert "Measured on an AMD EPYC (family 25, model 17), 2 threads" in guide
    for name in set(SCHEMES) - set(BUILTIN):  # of other tests
        monkeypatch.delitem(SCHEMES, name)
    for path, text in pages.render_pages(CARDS).items():
        assert path.read_text(encoding="utf-8") == text, "run `make model-cards`"


def test_make_speed_measures_what_is_committed():
    commands = re.findall(r"^python -m model_cards\.benchmark.* -o model_cards/results/(.+)$", PAGE.read_text(), re.M)
    processors = ("amd-epyc-family-25-model-17", "intel-r-xeon-r-processor-family-6-model-167")
    measured = {name.replace("{processor}", processor) for name in commands for processor in processors}
    measured |= {Path(gpu.BENCHMARK[-1]).name}  # by `make gpu`
    assert measured == {path.name for path in (CARDS / "results").glob("benchmark*.json")}
    assert run.slug("AMD EPYC (family 25, model 17)") == "amd-epyc-family-25-model-17"


def test_the_table_of_attentions_says_what_the_encoder_does(pages):
    refused = {}
    for row in pages.attention_table().splitlines()[2:]:
        schemes, *_, flash = [cell.strip() for cell in row.strip("|").split("|")]
        for name in schemes.replace("`", "").split(", "):
            refused[name] = flash.startswith("refused")
    assert set(BUILTIN) <= set(refused)
    for name, is_refused in refused.items():
        model = encoder(name)
        model.config._attn_implementation = "flash_attention_2"
        with pytest.raises(Exception) as caught:  # which runs on no CPU  # noqa: PT011
            model(tokens(2, 5))
        assert ("'flash_attention_2' takes no bias" in str(caught.value)) == is_refused, name
