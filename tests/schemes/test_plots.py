"""Pictures show the scheme's own numbers, whatever hooks it uses; nothing global is touched; files are whole."""

import importlib
import re
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from common import COMBINED, EVERY_HOOK, encoder, perturb, tiny_config
from own_schemes import Gate, TurnedHeads
from safetensors.torch import load_file, save_file
from torch import nn

import hf_posenc
from hf_posenc import PosEncConfig, PosEncForSequenceClassification, PosEncModel, PositionScheme
from hf_posenc.model.position_alibi import alibi_slopes
from hf_posenc.model.scheme_table import DebertaPosition
from hf_posenc.model.unpadding import Tokens
from hf_posenc.schemes.hooks import appended_bias, rotated_units
from hf_posenc.schemes.panels import Lines, Maps, Note, attention_panels, initial_scheme, position_panels
from hf_posenc.schemes.plots import plot_attention, plot_comparison, plot_position, save_figure

S = 12
POSITIONS = torch.arange(S).unsqueeze(0)
DISTANCES = np.arange(-(S - 1), S)


def panels(source, **options) -> dict[str, Lines | Maps | Note]:
    return {panel.title: panel for panel in position_panels(source, max_positions=S, **options)}


@pytest.mark.parametrize("scheme", EVERY_HOOK)
def test_what_a_scheme_does_decides_what_is_shown(scheme):
    config = tiny_config(scheme)
    position = initial_scheme(config)
    titles = " ".join(panels(config))
    if scheme == "none":
        assert titles == "No positions"
        return
    assert ("What is added" in titles) == position.uses("embed")
    appends, heeds_q = scheme == "pope", scheme not in ("cable", "window")
    assert ("Wavelengths" in titles) == (position.uses("rotate") and not appends)
    assert ("Attention among equal tokens" in titles) == (position.uses("bias") or appends or not heeds_q)
    assert ("random q, k" in titles) == (position.uses("layer_bias") and heeds_q)
    assert ("hidden states of 0" in titles) == (scheme == "cable")


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "lspe"])
def test_added_vectors(scheme):
    model = encoder(scheme)
    shown = panels(model)
    added = model.position.embed(torch.zeros(1, S, 32), Tokens.at(POSITIONS))[0].detach().double().numpy()
    np.testing.assert_allclose(shown["What is added"].values[0], added.T, atol=1e-6)
    np.testing.assert_allclose(shown["Norm"].y[0], np.linalg.norm(added, axis=1), rtol=1e-5)
    mean, deviation = shown["Mean and deviation over 32 dimensions"].y
    np.testing.assert_allclose(mean, added.mean(1), atol=1e-6)
    np.testing.assert_allclose(deviation, added.std(1), atol=1e-6)
    unit = added / np.linalg.norm(added, axis=1, keepdims=True)
    np.testing.assert_allclose(shown["Cosine of positions"].values[0], unit @ unit.T, atol=1e-5)
    np.testing.assert_allclose(shown["Cosine of neighbours"].y[0], (unit[1:] * unit[:-1]).sum(1), atol=1e-5)
    by_distance = shown["Cosine against distance"]
    assert by_distance.names == ("0", "6", "11")
    row = by_distance.y[1]
    assert np.isfinite(row).sum() == S
    assert row[by_distance.x == 3] == pytest.approx(float(unit[6] @ unit[9]), abs=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_decays_as_the_cosine_of_each_frequency(interleaved):
    config = tiny_config("rope", position_embedding_kwargs={"interleaved": interleaved})
    shown = panels(config)
    frequencies = 10000.0 ** (-2 * np.arange(4) / 8)
    expected = np.cos(frequencies[:, None] * np.arange(S))
    np.testing.assert_allclose(shown["q.k of each pair of entries"].values[0], expected, atol=1e-6)
    np.testing.assert_allclose(shown["Mean of 8 entries"].y, [expected.mean(0)], atol=1e-6)
    np.testing.assert_allclose(shown["Wavelengths"].y[0], 2 * np.pi / frequencies, rtol=1e-4)


def test_rotation_is_shown_beside_the_default_where_they_differ():
    config = tiny_config("rope", rope_parameters={"rope_theta": 100.0, "partial_rotary_factor": 0.5})
    mean = panels(config)["Mean of 8 entries, 4 of them turned"]
    assert mean.names == ("as configured", "the default")
    turned = np.cos(100.0 ** (-2 * np.arange(2) / 4)[:, None] * np.arange(S)).sum(0)
    np.testing.assert_allclose(mean.y[0], (2 * turned + 4) / 8, atol=1e-6)
    default = np.cos(10000.0 ** (-2 * np.arange(4) / 8)[:, None] * np.arange(S)).mean(0)
    np.testing.assert_allclose(mean.y[1], default, atol=1e-6)


def test_a_scaling_is_shown_with_its_factor_and_its_wavelengths():
    linear = {"rope_type": "linear", "factor": 4.0}
    waves = panels(tiny_config("rope", rope_parameters=linear))["Wavelengths"]
    assert waves.names == ("as configured", "the default")
    np.testing.assert_allclose(waves.y[0], 4 * waves.y[1], rtol=1e-4)
    yarn = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}
    shown = panels(tiny_config("rope", rope_parameters=yarn))
    assert shown["Mean of 8 entries"].y[0, 0] == pytest.approx(1.5**2)
    assert shown["q.k of each pair of entries"].limits[1] == pytest.approx(1.5**2)


def test_bias_against_distance_has_its_sign_and_a_curve_per_head():
    published = {"directional": False, "learned": False}
    shown = panels(tiny_config("alibi", position_embedding_kwargs=published))
    bias = shown["Bias against distance"]
    np.testing.assert_array_equal(bias.x, DISTANCES)
    np.testing.assert_allclose(bias.y, -np.array(alibi_slopes(4))[:, None] * np.abs(DISTANCES), rtol=1e-6)
    np.testing.assert_allclose(shown["The same by head"].values[0], bias.y)
    attention = shown["Attention among equal tokens, i = 6"].y
    np.testing.assert_allclose(attention.sum(1), 1, rtol=1e-5)
    assert attention[0, 6] / attention[0, 4] == pytest.approx(np.exp(2 * alibi_slopes(4)[0]), rel=1e-4)
    directional = panels(tiny_config("alibi"))
    assert not np.allclose(directional["Bias against distance"].y, bias.y)


def test_a_layers_own_bias_is_that_layers():
    model = encoder("t5", position_embedding_kwargs={"per_layer": True})
    first, second = (panels(model, layer=layer)[f"Bias against distance, layer {layer}"].y for layer in (0, 1))
    assert not np.allclose(first, second)
    table = model.position.tables[1].weight.detach().numpy()
    np.testing.assert_allclose(second[:, S - 1], table[0], rtol=1e-6)  # distance 0 is bucket 0


@pytest.mark.parametrize(("scheme", "kwargs"), [("fire", {"threshold": 2.0}), ("tupe", {})])
def test_a_bias_that_depends_on_the_position_is_shown_for_all_pairs(scheme, kwargs):
    model = encoder(scheme, position_embedding_kwargs=kwargs)
    shown = panels(model)
    bias = model.position.bias(Tokens.at(POSITIONS))[0].detach().numpy()
    maps = shown["Bias of each pair of positions"]
    np.testing.assert_allclose(maps.values, bias, atol=1e-6)
    assert maps.names == ("head 0", "head 1", "head 2", "head 3")
    np.testing.assert_allclose(shown["Bias from position 6"].y, bias[:, 6], atol=1e-6)
    several = shown["Head 0 from several positions"]
    assert several.y[several.names.index("6"), list(several.x).index(-2)] == pytest.approx(bias[0, 6, 4], abs=1e-6)


@pytest.mark.parametrize(("scheme", "terms"), [("relative_key", 1), ("relative_key_query", 2)])
def test_a_bias_of_content_is_shown_by_the_vectors_of_distances(scheme, terms):
    model = encoder(scheme)
    shown = panels(model, layer=1)
    table = model.position.tables[1].weight.detach().numpy()
    vectors = table[64 - 1 - DISTANCES]  # E[i - j]
    deviation = shown["Deviation of the bias over random q, k, layer 1"]
    assert deviation.names == ("all heads",)
    np.testing.assert_allclose(deviation.y[0], np.linalg.norm(vectors, axis=1) * (terms / 8) ** 0.5, rtol=1e-4)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = shown["Cosine of the distances' vectors, all heads"]
    np.testing.assert_allclose(cosine.values[0], unit @ unit.T, atol=1e-5)


def test_deviation_is_that_of_many_random_queries_and_keys():
    model = encoder("deberta")
    shown = panels(model)["Deviation of the bias over random q, k, layer 0"]
    q, k = torch.randn(2, 4000, 4, 1, 8).expand(-1, -1, -1, S, -1)
    bias = model.position.layer_bias(q, k, Tokens.at(POSITIONS), 0).detach()
    measured = bias.std(0)[:, 0].numpy()
    np.testing.assert_allclose(shown.y[:, S - 1 :], measured, rtol=0.1)


def test_trained_weights_are_those_of_the_checkpoint(tmp_path):
    config = tiny_config("learned", num_labels=3)
    model = perturb(PosEncForSequenceClassification(config))
    model.save_pretrained(tmp_path / "run")
    shown = panels(str(tmp_path / "run"))["What is added"].values[0]
    table = model.model.position.embedding.weight.detach().numpy()
    np.testing.assert_allclose(shown, table[:S].T, rtol=1e-6)
    assert not np.allclose(shown, panels(config)["What is added"].values[0], atol=0.01)


def test_a_scheme_starts_as_in_a_new_model():
    torch.manual_seed(0)
    for scheme in ("learned", "lspe", "tupe", "test_layer_distance"):
        config = tiny_config(scheme)
        alone, model = initial_scheme(config), PosEncModel(config).position
        for (name, a), b in zip(alone.state_dict().items(), model.state_dict().values(), strict=True):
            if name.endswith("weight"):
                assert float(a.std()) == pytest.approx(float(b.std()), rel=0.3), (scheme, name)


def test_the_source_is_left_as_it_was():
    model = encoder("learned").train().to(torch.bfloat16)
    state = torch.random.get_rng_state()
    first = panels(model)
    assert model.position.training
    assert model.position.embedding.weight.dtype == torch.bfloat16
    assert torch.equal(torch.random.get_rng_state(), state)
    config = PosEncConfig.from_preset("tiny", position_embedding_type="lspe")
    before = config.to_dict()
    panels(config)
    assert config.to_dict() == before
    again = panels(model)["Norm"].y
    np.testing.assert_array_equal(first["Norm"].y, again)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("rop", {}, "'rop' is neither a scheme .*nor a checkpoint"),
        ("/no/such/folder", {}, "neither a scheme"),
        (3, {}, "source=3 can't be plotted"),
        (nn.Identity(), {}, "can't be plotted"),
        (tiny_config("learned"), {"max_positions": 65}, "max_positions=65 .*2 to 64, as many as the scheme has"),
        (tiny_config("rope"), {"max_positions": 1}, "max_positions=1 .*2 to 2048"),
        (tiny_config("rope"), {"max_positions": True}, "max_positions=True"),
        (tiny_config("rope"), {"layer": 2}, "layer=2 .*layers 0 to 1"),
        (DebertaPosition(hidden_size=8, num_heads=2, num_layers=1), {}, "doesn't say its head_dim. Give config="),
        (tiny_config("learned", max_position_embeddings=1), {}, "one position alone"),
    ],
)
def test_bad_sources(source, options, message):
    with pytest.raises(ValueError, match=message):
        position_panels(source, **options)


def test_a_checkpoint_of_another_model_or_without_its_weights_is_refused(tmp_path):
    encoder("learned").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["position.embedding.weight"][0] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has NaN or infinity in position\.embedding\.weight"):
        position_panels(str(tmp_path))
    del weights["position.embedding.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights of its scheme: position\.embedding\.weight"):
        position_panels(str(tmp_path))
    with torch.device("meta"):
        model = PosEncModel(tiny_config("learned"))
    with pytest.raises(ValueError, match="meta device"):
        position_panels(model)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="is a bert model"):
        position_panels(str(tmp_path))


# Pictures


class Appends(PositionScheme):
    """One more entry of q and of k, whose product is 1."""

    query_scale = 0.5

    def rotate(self, q, k, state, layer):
        return tuple(torch.nn.functional.pad(x, (0, 1), value=1.0) for x in (q, k))


def test_what_is_appended_to_queries_and_keys_is_a_bias_and_no_rotation():
    assert torch.equal(rotated_units(Appends(), 2, 4, 5, 0), torch.eye(4).expand(1, 5, 4, 4))
    torch.testing.assert_close(appended_bias(Appends(), 2, 4, 5, 0), torch.full((2, 5, 5), 0.25))


@pytest.mark.parametrize("scheme", ["lspe", "rope", "kerple", "fire", "relative_key"])
def test_figures_hold_the_numbers(scheme):
    config = tiny_config(scheme)
    axes = plot_position(config, max_positions=S).get_axes()
    expected = position_panels(config, max_positions=S)
    curves = [line.get_ydata() for a in axes for line in a.lines]
    maps = [np.asarray(image.get_array()) for a in axes for image in a.images]
    rows = [row for panel in expected if isinstance(panel, Lines) for row in panel.y]
    images = [values for panel in expected if isinstance(panel, Maps) for values in panel.values]
    for drawn, numbers in zip([*curves, *maps], [*rows, *images], strict=True):
        np.testing.assert_array_equal(drawn, numbers)


def test_every_hook_can_be_drawn_and_compared(tmp_path):
    schemes = ["none", "learned", COMBINED[1]]
    configs = [tiny_config(scheme) for scheme in schemes]
    figure = plot_comparison(configs, max_positions=S)
    save_figure(figure, tmp_path / "all.png", dpi=30)
    titles = [axes.get_title(loc) for axes in figure.get_axes() for loc in ("left", "center")]
    rows = 0
    for scheme, config in zip(schemes, configs, strict=True):
        weights = ", initial weights" if any(True for _ in initial_scheme(config).parameters()) else ""
        heads = [re.sub(r" \(.*\)", "", title.strip()) for title in titles]
        acts = sum(initial_scheme(config).uses(hook) for hook in ("embed", "rotate", "bias", "layer_bias"))
        assert heads.count(scheme + weights) == max(acts, 1), scheme
        rows += acts
    profiles = [axes for axes in figure.get_axes() if axes.lines]
    assert len(profiles) == rows - 1  # none draws nothing
    assert {axes.get_xlim() for axes in profiles} == {(-11.0, 11.0)}


def test_a_heading_says_whose_weights_are_shown(tmp_path):
    model = encoder("learned")
    model.save_pretrained(tmp_path / "mine")

    def heading(source) -> str:
        return plot_position(source, max_positions=S).get_suptitle()

    assert heading(model.config).endswith("initial weights")
    assert heading(model).startswith("learned in PosEncModel")
    saved = heading(str(tmp_path / "mine"))
    assert saved.startswith("learned in mine")
    assert saved.endswith("trained weights")
    assert "weights" not in heading(tiny_config("rope"))


def test_nothing_global_is_touched(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is an error now

    before = matplotlib.rcParams.copy()  # which asks for no backend
    save_figure(plot_position(tiny_config("fire"), max_positions=S), tmp_path / "a.svg")
    save_figure(plot_comparison([tiny_config("alibi")], max_positions=S), tmp_path / "b.png", dpi=30)
    assert matplotlib.rcParams.copy() == before


@pytest.mark.slow  # draws each kind of file twice
def test_files_are_whole_and_the_same_every_time(tmp_path, monkeypatch):
    def draw():
        return plot_position(tiny_config("alibi"), max_positions=S)

    figure = draw()
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / "new" / f"a.{suffix}"
        save_figure(draw(), path, dpi=40)
        first = path.read_bytes()
        assert first.startswith(start)
        save_figure(draw(), path, dpi=40)
        assert path.read_bytes() == first
        monkeypatch.setattr(figure, "savefig", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_figure(figure, path)
        monkeypatch.undo()
        assert path.read_bytes() == first
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"a.png", "a.svg", "a.pdf"}
    with pytest.raises(ValueError, match=r"a.jpg' names no format.*\.png, \.svg, \.pdf"):
        save_figure(figure, tmp_path / "a.jpg")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        save_figure(figure, tmp_path / "b.png")


def test_a_comparison_takes_a_list():
    for sources in ("rope", []):
        with pytest.raises(ValueError, match="nothing to compare"):
            plot_comparison(sources)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rope", "-o", "a.jpg"), "names no format"),
        (("rope", "alibi", "-o", "a.png", "--scheme-kwargs", "{}"), "goes with one scheme's name"),
        (("rope", "-o", "a.png", "--scheme-kwargs", "{theta"), "is no JSON"),
        (("somebody/nothing", "-o", "a.png"), "Error: "),
    ],
)
def test_the_command_refuses_what_cannot_be_drawn(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("plot", *arguments)
    assert code == 2, err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


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
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "rope.png", "sheet.png"}


def test_without_matplotlib_there_are_numbers_and_one_line_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert position_panels(tiny_config("rope"), max_positions=S)
    code, _, err = run("plot", "rope", "-o", "never.png")
    assert code == 2
    assert err.strip() == 'Error: Plots need matplotlib. Install it with: pip install "hf-posenc[plots]"'


@pytest.mark.parametrize("scheme", ["none", "learned", "rope", "t5"])
def test_attention_by_distance_is_the_mean_of_the_models_own(scheme):
    model = encoder(scheme).train()
    ids = torch.arange(5, 5 + S).unsqueeze(0)
    by_layer, by_head, matrix = attention_panels(model, ids, layer=1)
    assert model.training
    with torch.no_grad():
        attentions = model.eval()(ids, output_attentions=True).attentions
    for layer, head, distance in ((0, 0, 0), (1, 3, -4), (1, 2, S - 1)):
        pairs = [(i, i + distance) for i in range(S) if 0 <= i + distance < S]
        mean = [np.mean([float(attentions[layer][0, h, i, j]) for i, j in pairs]) for h in range(4)]
        column = list(by_layer.x).index(distance)
        assert by_layer.y[layer, column] == pytest.approx(np.mean(mean), abs=1e-6)
        if layer == 1:
            assert by_head.y[head, column] == pytest.approx(mean[head], abs=1e-6)
    np.testing.assert_allclose(matrix.values[0], torch.stack(attentions).mean((0, 1, 2)).numpy(), atol=1e-6)
    titles = [axes.get_title() for part in plot_attention(model, ids, title="seen").subfigs for axes in part.axes]
    assert {by_layer.title, matrix.title} <= set(titles)


def test_attention_is_shown_beside_the_words_of_the_text():
    model, words = encoder("rope"), ("[CLS]", "the", "cat", "sat", "[SEP]")
    ids = torch.arange(5)[None]
    matrix = labelled(plot_attention(model, ids, words=words))
    assert tuple(label.get_text() for label in matrix.get_xticklabels()) == words
    assert tuple(label.get_text() for label in matrix.get_yticklabels()) == words
    long = plot_attention(model, torch.arange(5).repeat(10)[None], words=words * 10)
    assert len(labelled(long).get_xticklabels()) <= 20
    with pytest.raises(ValueError, match="words are 4, for 5 tokens. Give one for each, or none"):
        plot_attention(model, ids, words=words[:4])


def test_each_of_many_heads_has_a_picture_of_its_own():
    """Twelve curves in one axes couldn't be told apart; six can."""
    config = PosEncConfig.from_preset("base", position_embedding_type="alibi")
    figure = plot_position(config, max_positions=16)
    heads = [axes for part in figure.subfigs for axes in part.axes if axes.get_title().startswith("head ")]
    assert [axes.get_title() for axes in heads] == [f"head {head}" for head in range(12)] * 2
    for head, axes in enumerate(heads[:12]):
        assert len(axes.lines) == 13
        (own,) = [line for line in axes.lines if line.get_color() != "0.85"]
        np.testing.assert_array_equal(own.get_ydata(), axes.lines[head].get_ydata())
    config = PosEncConfig.from_preset("base", position_embedding_type="alibi", num_attention_heads=6)
    assert not any(axes.get_title().startswith("head ") for axes in plot_position(config, max_positions=16).get_axes())


def labelled(figure):
    """The map whose rows are words."""
    return next(axes for part in figure.subfigs for axes in part.axes if axes.get_ylabel() == "word")


@pytest.mark.parametrize(
    ("shape", "layer", "message"),
    [
        ((1, 1), 0, r"input_ids of shape \(1, 1\) can't be shown. Give one text"),
        ((2, 5), 0, r"input_ids of shape \(2, 5\)"),
        ((1, 5), 2, "layer=2 is out of range. The model has layers 0 to 1"),
    ],
)
def test_attention_that_cannot_be_shown_is_named(shape, layer, message):
    with pytest.raises(ValueError, match=message):
        attention_panels(encoder("rope"), torch.ones(shape, dtype=torch.int64), layer=layer)


@pytest.fixture
def own(monkeypatch):
    for name, scheme in (("turned_heads", TurnedHeads), ("gate", Gate)):
        monkeypatch.setattr(scheme, "name", name, raising=False)
        monkeypatch.setitem(hf_posenc.POSITIONS, name, scheme)


@pytest.mark.slow
def test_a_rotation_that_differs_by_head_has_a_curve_for_each(own, tmp_path):
    config = tiny_config("turned_heads")
    shown = panels(config)
    speeds = np.array(hf_posenc.POSITIONS["turned_heads"](head_dim=8, num_heads=4).speeds)
    expected = np.cos(speeds[:, :, None] * np.arange(S)).mean(1)
    mean = shown["Mean of 8 entries"]
    assert (mean.names, mean.group) == (("0", "1", "2", "3"), "head")
    np.testing.assert_allclose(mean.y, expected, atol=1e-5)
    np.testing.assert_allclose(shown["Wavelengths"].y, 2 * np.pi / np.sort(speeds, axis=1)[:, ::-1], rtol=1e-3)
    pairs = shown["q.k of each pair of entries, head 0"].values[0]
    np.testing.assert_allclose(pairs, np.cos(speeds[0][:, None] * np.arange(S)), atol=1e-5)
    combined = panels(tiny_config("turned_heads+t5"))
    np.testing.assert_allclose(combined["Mean of 8 entries"].y, expected, atol=1e-5)
    for figure in (plot_position(config), plot_comparison([config, tiny_config("rope")])):
        save_figure(figure, tmp_path / "heads.png", dpi=40)


@pytest.mark.slow
def test_a_bias_that_is_not_linear_is_measured_on_drawn_queries(own, tmp_path):
    config = tiny_config("gate")
    shown = panels(config)
    deviation = shown["Deviation of the bias over random q, k, layer 0"]
    # Half of all queries open the gate: the deviation of -|t| or 0 is |t| / 2.
    np.testing.assert_allclose(deviation.y, np.tile(np.abs(DISTANCES) / 2, (len(deviation.y), 1)), rtol=0.1, atol=1e-6)
    alike = shown[next(title for title in shown if title.startswith("Correlation of distances over 256 draws"))]
    assert alike.values[0][S, S + 3] == pytest.approx(1, abs=1e-5)
    save_figure(plot_position(config), tmp_path / "gate.png", dpi=40)


class UpperLayers(PositionScheme):
    """Turns and biases nothing in the first layer."""

    name = "upper_layers"

    def rotate(self, q, k, state, layer):
        return (q.flip(-1), k) if layer else (q, k)

    def layer_bias(self, q, k, tokens, layer):
        return (
            -tokens.positions[:, None, None, :].float().expand(-1, -1, tokens.positions.shape[1], -1) if layer else None
        )


def test_a_layer_in_which_a_hook_gives_none_is_drawn_without_effect(monkeypatch, tmp_path):
    monkeypatch.setitem(hf_posenc.POSITIONS, "upper_layers", UpperLayers)
    config = tiny_config("upper_layers")
    first = panels(config, layer=0)
    assert np.all(first["Mean of 8 entries, 0 of them turned"].y == 1)
    assert not np.any(first["Bias against distance, layer 0"].y)
    save_figure(plot_position(config, max_positions=S, layer=0), tmp_path / "a.png", dpi=30)


def test_a_picture_never_fails_what_it_is_for(monkeypatch, tmp_path):
    from hf_posenc.hub import collecting

    warnings = []
    monkeypatch.setattr("hf_posenc.schemes.plots.logger.warning", warnings.append)

    monkeypatch.setattr("hf_posenc.schemes.plots.plot_position", lambda *_, **__: 1 / 0)
    assert collecting._draw(encoder("rope"), tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert len(warnings) == 1
    assert all("division by zero" in line and "There is no picture of" in line for line in warnings)


def test_a_scheme_that_asks_for_tokens_is_drawn(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "strangers")
    monkeypatch.setitem(hf_posenc.POSITIONS, "bipe", importlib.import_module("bipe").Bipe)
    assert any(axes.lines or axes.images for axes in plot_position(tiny_config("bipe"), max_positions=S).axes)


@pytest.mark.parametrize(("layers", "layer", "shown", "least"), [(1, None, 0, 0.0), (4, 3, 3, 0.0), (4, None, 1, -1e4)])
def test_the_first_layer_with_a_window_is_shown_unless_a_layer_is_named(layers, layer, shown, least):
    config = tiny_config("window", position_embedding_kwargs={"sliding_window": 2}, num_hidden_layers=layers)
    assert panels(config, layer=layer)[f"Bias against distance, layer {shown}"].y.min() == least
