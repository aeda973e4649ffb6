"""Pictures show the scheme's own numbers, whatever hooks it uses; nothing global is touched; files are whole."""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

import hf_posenc
from hf_posenc import PosEncConfig, PosEncModel, PositionScheme, Tokens, UserError, plot, plotting
from hf_posenc.schemes.hooks import rotated_units
from tests.support.common import COMBINED, EVERY_HOOK, encoder, tiny_config
from tests.support.own_schemes import Gate
from tests.support.references import PUBLISHED_SLOPES

S = 12
POSITIONS = torch.arange(S).unsqueeze(0)
DISTANCES = np.arange(S) - S // 2
ORDER = "What two words that swap places change"


def axes(source, **options):
    """The axes of a picture by their titles; those of colour bars have none."""
    drawn = plotting.plot_position(source, **{"max_positions": S, **options}).get_axes()
    return {panel.get_title(): panel for panel in drawn if panel.get_title()}


def curves(panel):
    return np.array([line.get_ydata() for line in panel.lines])


def image(panel):
    return np.asarray(panel.images[0].get_array())


@pytest.mark.parametrize("scheme", [*EVERY_HOOK, *COMBINED])
def test_what_a_scheme_does_decides_what_is_shown_in_at_most_four_panels(scheme):
    position = PosEncModel(tiny_config(scheme)).position
    shown = axes(tiny_config(scheme))
    assert len(shown) <= 4
    assert ORDER in shown
    titles = " ".join(shown)
    assert ("What is added" in titles) == (position.uses("embed") and scheme != "none")
    assert ("q.k of equal vectors" in titles) == position.uses("rotate")
    biased = position.uses("bias") or position.uses("layer_bias")
    assert ("Bias" in titles or "Attention among equal tokens" in titles) == biased or len(shown) == 4
    assert (len(shown) == 1) == (scheme == "none")


def test_added_vectors():
    model = encoder("learned")
    shown = axes(model)
    added = model.position.embed(torch.zeros(1, S, 32), Tokens.from_positions(POSITIONS))[0].detach().numpy()
    np.testing.assert_allclose(image(shown["What is added to embeddings"]), added.T, atol=1e-6)
    unit = added / np.linalg.norm(added, axis=1, keepdims=True)
    np.testing.assert_allclose(image(shown["Cosine of what is added"]), unit @ unit.T, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_decays_as_the_cosine_of_each_frequency(interleaved):
    shown = axes(tiny_config("rope", position_embedding_kwargs={"interleaved": interleaved}))
    frequencies = np.repeat(10000.0 ** (-2 * np.arange(4) / 8), 2)
    expected = np.cos(frequencies[:, None] * np.arange(S))
    np.testing.assert_allclose(image(shown["q.k of each entry of head 0"]), expected, atol=1e-6)
    (mean,) = curves(shown["q.k of equal vectors, over q.q"])
    np.testing.assert_allclose(mean, np.cos(frequencies[:, None] * DISTANCES).mean(0), atol=1e-5)


def test_a_bias_has_its_sign_and_a_curve_per_head():
    published = {"directional": False, "learned": False}
    shown = axes(tiny_config("alibi", position_embedding_kwargs=published))
    slopes = np.array(PUBLISHED_SLOPES[4])[:, None]
    np.testing.assert_allclose(curves(shown["Bias, from position 6"]), -slopes * np.abs(DISTANCES), rtol=1e-6)
    assert "Bias, head 0" not in shown


@pytest.mark.parametrize(("scheme", "kwargs"), [("fire", {"threshold": 2.0}), ("tupe", {})])
def test_a_bias_that_depends_on_the_position_is_shown_for_all_pairs(scheme, kwargs):
    model = encoder(scheme, position_embedding_kwargs=kwargs)
    bias = model.position.bias(Tokens.from_positions(POSITIONS))[0].detach().numpy()
    shown = axes(model)
    np.testing.assert_allclose(image(shown["Bias, head 0"]), bias[0], atol=1e-6)
    np.testing.assert_allclose(curves(shown["Bias, from position 6"]), bias[:, 6], atol=1e-6)


@pytest.mark.parametrize("scheme", ["window", "dual_triangle"])
def test_where_a_bias_hides_tokens_attention_is_shown(scheme):
    kwargs = {"sliding_window": 4} if scheme == "window" else {}
    shown = axes(tiny_config(scheme, position_embedding_kwargs=kwargs, num_hidden_layers=2))
    maps = [image(panel) for title, panel in shown.items() if title.startswith("Attention among equal tokens")]
    distance = np.abs(np.arange(S)[:, None] - np.arange(S))
    if scheme == "window":  # whose first layer sees all: the second is shown
        assert "Attention in random words, layer 1" in shown
        np.testing.assert_array_equal(maps, [distance <= 4])
    else:
        np.testing.assert_array_equal(maps, [np.tri(S), np.tri(S).T])


@pytest.mark.parametrize(("scheme", "terms"), [("relative_key", 1), ("relative_key_query", 2)])
def test_a_bias_of_content_is_measured_over_random_queries_and_keys(scheme, terms):
    model = encoder(scheme)
    shown = axes(model, layer=1)
    vectors = model.position.tables[1].weight.detach().numpy()[64 - 1 - DISTANCES]  # E[i - j]
    expected = np.linalg.norm(vectors, axis=1) * (terms / 8) ** 0.5
    deviation = curves(shown["Bias of layer 1: deviation over content"])
    np.testing.assert_allclose(deviation.mean(0), expected, rtol=0.15)
    assert curves(shown["Bias of layer 1, head 0: three draws"]).shape == (3, S)


def test_a_bias_that_is_not_linear_is_measured_too(monkeypatch):
    monkeypatch.setattr(Gate, "name", "gate", raising=False)
    monkeypatch.setitem(hf_posenc.SCHEMES, "gate", Gate)
    deviation = curves(axes(tiny_config("gate"))["Bias of layer 0: deviation over content"])
    # Half of all queries open the gate: the deviation of -|t| or 0 is |t| / 2.
    np.testing.assert_allclose(deviation.mean(0), np.abs(DISTANCES) / 2, rtol=0.1, atol=1e-6)


@pytest.mark.parametrize("scheme", ["none", "learned", "rope", "t5"])
def test_attention_is_the_mean_of_the_models_own(scheme):
    model = encoder(scheme).train()
    ids = torch.arange(5, 5 + S).unsqueeze(0)
    shown = curves(axes(model, layer=1, input_ids=ids)["Attention in the text, layer 1"])
    assert model.training
    with torch.no_grad():
        weights = model.eval()(ids, output_attentions=True).attentions[1][0]
    for head, distance in ((0, 0), (3, -4), (2, S // 2 - 1)):
        pairs = [float(weights[head, i, i + distance]) for i in range(S) if 0 <= i + distance < S]
        assert shown[head, list(DISTANCES).index(distance)] == pytest.approx(np.mean(pairs), abs=1e-6)


def test_what_a_model_sees_of_order_is_nothing_without_positions():
    (blind,), (seeing,) = (curves(axes(encoder(scheme))[ORDER]) for scheme in ("none", "learned"))
    assert blind.max() < 1e-4
    assert seeing.min() > 0.1
    assert len(blind) == 4  # at distances 1, 2, 4, 8


def test_the_source_is_left_as_it_was():
    model = encoder("learned").train().to(torch.bfloat16)
    config = PosEncConfig.from_size("tiny", position_embedding_type="lspe")
    state, before = torch.random.get_rng_state(), config.to_dict()
    first = image(axes(model)["What is added to embeddings"])
    axes(config)
    assert model.position.training
    assert model.position.embedding.weight.dtype == torch.bfloat16
    assert torch.equal(torch.random.get_rng_state(), state)
    assert config.to_dict() == before
    np.testing.assert_array_equal(first, image(axes(model)["What is added to embeddings"]))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("learned", {"max_positions": 513}, "max_positions=513 .*2 to 512"),
        ("rope", {"max_positions": 1}, "max_positions=1 .*2 to 512"),
        ("rope", {"layer": 2, "max_positions": 4}, "layer=2 .*layers 0 to 1"),
        ("rop", {}, "source='rop' is unknown. Did you mean 'rope'.* scheme_file registers those of a file"),
        ("rope+rope", {}, "source='rope.rope' makes no sense: .* Use 'rope'.$"),
        ("alibi", {"scheme_kwargs": '{"lerned": 1}'}, "scheme_kwargs={'lerned': 1} is no argument of 'alibi'"),
        (
            "learned+t5",
            {"scheme_kwargs": {"rope": {}}},
            "scheme_kwargs={'rope': {}}: .* doesn't fit 'learned.t5'. The arguments of a combination",
        ),
        ("rope", {"size": "huge"}, "size='huge' is unknown. Choose one of tiny"),
        ("rope", {"output": "a.jpg"}, "output='a.jpg' names no format"),
        ("rope+pope", {}, "'pope' makes queries and keys anew"),
    ],
)
def test_bad_arguments(source, options, message):
    with pytest.raises(UserError, match=message):
        plot(source, **{"size": "tiny", **options})


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"^A plot needs matplotlib, which is not installed: pip install matplotlib\.$"):
        plot("rope", size="tiny")


def test_a_new_scheme_and_a_checkpoint_are_drawn(tmp_path):
    encoder("learned").save_pretrained(tmp_path / "mine")
    assert plot(tmp_path / "mine", max_positions=S).get_suptitle().endswith("given weights")
    new = plot("t5", tmp_path / "a.png", size="tiny", scheme_kwargs={"num_buckets": 4}, max_positions=S)
    assert new.get_suptitle() == "t5 · D = 128, 2 heads, 2 layers · new weights"
    assert (tmp_path / "a.png").stat().st_size > 1000


class Appends(PositionScheme):
    """One more entry of q and of k, whose product is 1."""

    def rotate(self, q, k, state, layer):
        return tuple(torch.nn.functional.pad(x, (0, 1), value=1.0) for x in (q, k))


def test_what_is_appended_to_queries_and_keys_is_no_rotation():
    assert torch.equal(rotated_units(Appends(), 2, 4, 5, 0), torch.eye(4).expand(1, 5, 4, 4))


def test_nothing_global_is_touched(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is an error now
    before = matplotlib.rcParams.copy()  # which asks for no backend
    plotting.save_figure(plotting.plot_position(tiny_config("fire"), max_positions=S), tmp_path / "a.svg")
    assert matplotlib.rcParams.copy() == before


@pytest.mark.slow  # draws each kind of file twice
def test_files_are_whole_and_the_same_every_time(tmp_path, monkeypatch):
    def draw():
        return plotting.plot_position(tiny_config("alibi"), max_positions=S)

    figure = draw()
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / "new" / f"a.{suffix}"
        plotting.save_figure(draw(), path, dpi=40)
        first = path.read_bytes()
        assert first.startswith(start)
        plotting.save_figure(draw(), path, dpi=40)
        assert path.read_bytes() == first
        monkeypatch.setattr(figure, "savefig", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            plotting.save_figure(figure, path)
        monkeypatch.undo()
        assert path.read_bytes() == first
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"a.png", "a.svg", "a.pdf"}
    with pytest.raises(ValueError, match=r"a.jpg' names no format.*\.png, \.svg, \.pdf"):
        plotting.save_figure(figure, tmp_path / "a.jpg")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        plotting.save_figure(figure, tmp_path / "b.png")


@pytest.mark.slow
def test_the_commands_of_the_guide_draw(run, tmp_path, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs/positions.md").read_text()
    lines = [line.partition("  #")[0].split() for line in guide.splitlines() if line.startswith("hf-posenc plot")]
    assert len(lines) == 2
    monkeypatch.chdir(tmp_path)
    encoder("learned").save_pretrained("runs/mine")
    for line in lines:
        code, _, err = run(*line[1:], "--max-positions", "8")
        assert code == 0, err
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "rope.png", "mine.png"}


def test_a_layers_own_bias_is_that_layers():
    model = encoder("t5", position_embedding_kwargs={"per_layer": True})
    for layer in (0, 1):
        shown = curves(axes(model, layer=layer)[f"Bias of layer {layer}, from position 6"])
        table = model.position.tables[layer].weight.detach().numpy()
        np.testing.assert_allclose(shown[:, S // 2], table[0], rtol=1e-6)  # distance 0 is bucket 0
