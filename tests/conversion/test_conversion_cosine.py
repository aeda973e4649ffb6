"""`cosine_bias` fitted to other biases: how near it comes, what the report says, and where it refuses."""

import pytest
import torch
from common import encoder, tiny_config, tokens
from conversion_harness import tiny_tokenizer

from hf_posenc import PosEncModel
from hf_posenc.conversion import convert
from hf_posenc.errors import UserError

LENGTH = 512
PUBLISHED = {"directional": False, "learned": False}
TWELVE_HEADS = {"hidden_size": 96, "num_attention_heads": 12, "max_position_embeddings": LENGTH}


def saved(folder, model):
    model.save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def fresh(scheme, **fields):
    torch.manual_seed(0)
    return PosEncModel(tiny_config(scheme, **fields)).eval()


def biases(scheme, length, layer=0):
    """(H, S, S) of `of_distance`, float64."""
    places = torch.arange(length)
    with torch.no_grad():
        by_distance = scheme.of_distance(torch.arange(1 - length, length), layer).double()
    return by_distance.T[:, places[None, :] - places[:, None] + length - 1]


def moved(old, new, places=None):
    """The largest total variation between rows of attention, of equal tokens."""
    change = (old.softmax(-1) - new.softmax(-1)).abs().sum(-1) / 2
    return float((change if places is None else change[:, places]).max())


@pytest.mark.parametrize(("frequencies", "most"), [(16, 0.018), (32, 0.004)])
def test_published_alibi_is_met_to_a_few_thousandths_of_attention(frequencies, most, tmp_path):
    original = encoder("alibi", position_embedding_kwargs=PUBLISHED, **TWELVE_HEADS)
    kwargs = {"num_frequencies": frequencies}
    source = saved(tmp_path, original)
    model, report = convert(source, position_embedding_type="cosine_bias", position_embedding_kwargs=kwargs)
    line = report.carried[-1]
    assert (line["what"], line["max_length"]) == ("fitted to the bias of alibi", LENGTH)
    old, new = (biases(each.position, LENGTH) for each in (original, model))
    change = moved(old, new, [0, LENGTH // 2, LENGTH - 1])
    assert line["attention_moved"] == pytest.approx(change, rel=1e-3)
    assert change < most
    assert moved(old, new) < 1.2 * most
    others = line["attention_moved_by_num_frequencies"]
    assert set(others) == {"8", "16", "32", "64"} - {str(frequencies)}
    assert others["8"] > line["attention_moved"] > others["64"]
    # Up to a constant for each head, which softmax ignores.
    error = old.clamp(min=-12)[:, 0] - new[:, 0]
    assert (error - error[:, :1]).abs().mean() < 3 * line["mean_error"] < 3 * line["largest_error"]
    _, without = convert(source, position_embedding_type="none")
    assert report.before.hidden_mse < 0.003 * without.before.hidden_mse


@pytest.mark.parametrize(("scheme", "most"), [("alibi", 0.08), ("kerple", 0.09), ("mlp_bias", 0.05)])
def test_smooth_biases_of_each_layer_and_side_are_met(scheme, most, tmp_path):
    kwargs = {"per_layer": True} if scheme == "alibi" else None
    original = fresh(scheme, max_position_embeddings=256, position_embedding_kwargs=kwargs)
    if kwargs:
        with torch.no_grad():
            original.position.log_slopes.weight[2:] -= 0.7  # the second layer's are half as steep
    model, report = convert(saved(tmp_path, original), position_embedding_type="cosine_bias", measure=False)
    assert model.config.position_embedding_kwargs["per_layer"]
    changes = [moved(biases(original.position, 256, n), biases(model.position, 256, n)) for n in range(2)]
    assert max(changes) < most
    assert report.carried[-1]["attention_moved"] <= max(changes) + 1e-3


def test_one_bias_for_all_layers_is_fitted_to_their_mean_and_measured_against_each(tmp_path):
    original = fresh("alibi", max_position_embeddings=256, position_embedding_kwargs={"per_layer": True})
    with torch.no_grad():
        original.position.log_slopes.weight[2:] -= 1.5
    source, kwargs = saved(tmp_path, original), {"num_frequencies": 32, "per_layer": False}
    to = {"position_embedding_type": "cosine_bias", "measure": False}
    model, report = convert(source, position_embedding_kwargs=kwargs, **to)
    assert len(model.position.coefficients) == 1
    mean = torch.stack([biases(original.position, 256, n).clamp(min=-12) for n in range(2)]).mean(0)
    assert moved(mean, biases(model.position, 256)) < 0.05
    assert report.carried[-1]["attention_moved"] > 0.1
    assert report.carried[-1]["what"].startswith("only roughly fitted to the bias of alibi: more num_frequencies")


def test_a_rough_bias_is_said_to_be_met_roughly(tmp_path):
    source = saved(tmp_path, fresh("t5", max_position_embeddings=LENGTH))
    _, report = convert(source, position_embedding_type="cosine_bias")
    line = report.carried[-1]
    assert 0.1 < line["attention_moved_by_num_frequencies"]["64"] < line["attention_moved"] < 0.5
    shown = repr(report)
    assert "carried over: scheme cosine_bias, what only roughly fitted to the bias of t5: more num_frequencies" in shown
    assert f"attention_moved {line['attention_moved']:.4g}" in shown


def test_several_biases_are_fitted_as_their_sum_and_rope_stays(tmp_path):
    original = fresh("rope+alibi+mlp_bias", max_position_embeddings=128)
    source = saved(tmp_path, original)
    model, report = convert(source, position_embedding_type="rope+cosine_bias")
    parts = original.position.parts
    old = biases(parts["alibi"], 128) + biases(parts["mlp_bias"], 128)
    assert moved(old, biases(model.position.cosine_bias, 128)) < 0.05
    assert report.carried[-1]["what"] == "fitted to the bias of alibi and mlp_bias"
    _, without = convert(source, position_embedding_type="rope")
    assert report.before.hidden_mse < 0.02 * without.before.hidden_mse


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("scheme", ["alibi", "kerple", "mlp_bias"])
def test_steep_biases_and_those_that_grow_far_away_keep_most_of_short_texts_attention(scheme, per_layer, tmp_path):
    original = fresh(scheme, max_position_embeddings=LENGTH)
    with torch.no_grad():
        if scheme == "alibi":
            original.position.log_slopes.weight += 1.5
        elif scheme == "kerple":
            original.position.shape.weight += 2.0
        else:  # what training never reached may get more than what is near
            original.position.down.weight *= 10
    kwargs, source = {"num_frequencies": 32, "per_layer": per_layer}, saved(tmp_path, original)
    to = {"position_embedding_type": "cosine_bias", "position_embedding_kwargs": kwargs}
    model, report = convert(source, measure=False, **to)
    for length, places in ((LENGTH, [0, LENGTH // 2, LENGTH - 1]), (40, None)):
        old, new = (biases(each.position, length) for each in (original, model))
        change = moved(old, new, places)
        assert change < 0.3
        if length == LENGTH:
            assert report.carried[-1]["attention_moved"] == pytest.approx(change, rel=1e-3)


def test_without_an_old_bias_it_starts_without_effect(tmp_path):
    for scheme, kind in (("none", "cosine_bias"), ("rope", "rope+cosine_bias")):
        original = encoder(scheme)
        model, report = convert(saved(tmp_path / scheme, original), position_embedding_type=kind)
        assert report.carried[-1]["what"] == "starts without effect"
        ids = tokens(2, 20)
        torch.testing.assert_close(model(ids).last_hidden_state, original(ids).last_hidden_state)


def test_what_a_table_does_to_attention_is_held_constant_beyond_what_was_measured(tmp_path):
    source = saved(tmp_path, encoder("learned", max_position_embeddings=LENGTH))
    model, report = convert(source, position_embedding_type="cosine_bias", measure=False)
    assert report.carried[-1]["what"] == "fitted to the old effect by distance, constant from 23 on"
    with torch.no_grad():
        bias = model.position.of_distance(torch.arange(60, 500), 0)
    assert bias.std(0).max() < 0.05


def test_the_length_of_the_fit_is_the_schemes_limit(tmp_path):
    source = saved(tmp_path, fresh("alibi"))
    to = {"position_embedding_type": "cosine_bias", "measure": False}
    model, report = convert(source, max_position_embeddings=300, **to)
    assert model.position.max_length == report.carried[-1]["max_length"] == 300
    model(tokens(1, 300))
    with pytest.raises(ValueError, match="'cosine_bias' has 300 positions, the input has 301"):
        model(tokens(1, 301))


def test_other_frequencies_are_fitted_anew_and_no_conversion_reaches_further(tmp_path):
    torch.manual_seed(0)
    smooth = saved(tmp_path / "alibi", fresh("alibi", max_position_embeddings=128))
    original, _ = convert(smooth, tmp_path / "old", position_embedding_type="cosine_bias", measure=False)
    own = original.config.position_embedding_kwargs
    for changes in ({"num_frequencies": 40}, {"max_length": 100}):
        model, report = convert(tmp_path / "old", position_embedding_kwargs={**own, **changes}, measure=False)
        assert report.carried[-1]["what"] == "fitted to the bias of cosine_bias"
        old, new = (biases(each.position, 100) for each in (original, model))
        assert moved(old, new) < 0.02
    kept, report = convert(tmp_path / "old", max_position_embeddings=100, measure=False)
    assert torch.equal(kept.position.coefficients[0].weight, original.position.coefficients[0].weight)
    with pytest.raises(
        UserError, match=r"max_length=129 is past the 128 positions of the source's 'cosine_bias'.*at most 128"
    ):
        convert(tmp_path / "old", position_embedding_kwargs={**own, "max_length": 129}, measure=False)
    message = "max_position_embeddings=129 is past the 128 positions of 'cosine_bias', which no conversion extends"
    with pytest.raises(UserError, match=message):
        convert(tmp_path / "old", max_position_embeddings=129, measure=False)
