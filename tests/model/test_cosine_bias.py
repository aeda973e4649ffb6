"""`cosine_bias`: the formula in all combinations, its limit, and that no tensor grows with the square of the length."""

import math

import pytest
import torch
from common import encoder, padded, perturb, tiny_config, tokens
from references import encode
from torch.utils._python_dispatch import TorchDispatchMode

from hf_posenc import CosineBiasPosition, PosEncForSequenceClassification, PosEncModel, make_position
from hf_posenc.model.position_cosine_bias import cut_bias, fit_cosines, geometric_frequencies
from hf_posenc.model.unpadding import Tokens

OWN = {"cosine_bias": {"per_layer": True, "num_frequencies": 5}}
COMBINATIONS = {
    "per layer": ("cosine_bias", OWN["cosine_bias"]),
    "one frequency": ("cosine_bias", {"num_frequencies": 1}),
    "before rope": ("cosine_bias+rope", OWN),
    "after rope": ("rope+cosine_bias", None),
    "after interleaved rope": ("rope+cosine_bias", {"rope": {"interleaved": True}}),
    "beside scaled queries": ("deberta+cosine_bias", OWN),
    "beside two of them": ("tupe+deberta+cosine_bias", {"tupe": {"reset_first": False}}),
    "beside a bias": ("t5+cosine_bias", None),
}


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_combination_equals_its_float64_twin_in_values_and_gradients(combination):
    scheme, kwargs = COMBINATIONS[combination]
    model = encoder(scheme, position_embedding_kwargs=kwargs)
    ids, target = tokens(7), torch.randn(7, 32)
    got, expected = model(ids[None]).last_hidden_state[0], encode(model, ids)
    torch.testing.assert_close(got.double(), expected, atol=2e-5, rtol=2e-5)
    own = {name: value for name, value in model.named_parameters() if "coefficients" in name}
    assert len(own) == (2 if kwargs and (kwargs == OWN or "per_layer" in kwargs) else 1)
    gradients = [torch.autograd.grad((out * target).sum(), [*own.values()]) for out in (got, expected)]
    for name, first, second in zip(own, *gradients, strict=True):
        torch.testing.assert_close(
            first.double(), second.double(), atol=1e-4, rtol=1e-3, msg=lambda m, n=name: f"{n} {m}"
        )


@pytest.mark.parametrize("scheme", ["tupe+cosine_bias", "cosine_bias+tupe"])
def test_tupe_does_not_untie_the_first_token_from_it(scheme):
    model = encoder(scheme)
    ids = tokens(7)
    before = model(ids[None], output_attentions=True).attentions[0][0, :, 0]
    with torch.no_grad():
        model.position.cosine_bias.coefficients[0].weight.zero_()
    after = model(ids[None], output_attentions=True).attentions[0][0, :, 0]
    assert (before - after).abs().max() > 0.05


def test_q_and_k_get_the_bias_as_a_product_and_their_width_is_a_multiple_of_8():
    scheme = CosineBiasPosition(head_dim=12, num_heads=3, max_positions=40, num_frequencies=5)
    positions = torch.tensor([[0, 3, 39, 7], [5, 5, 0, 1]])
    q, k = torch.randn(2, 2, 4, 3, 12)
    wide_q, wide_k = scheme.rotate(q, k, scheme.rotary(Tokens.at(positions)), 0)
    assert wide_q.shape == wide_k.shape == (2, 4, 3, 24)
    assert torch.equal(wide_q[..., :12], q)
    assert torch.equal(wide_k[..., :12], k)
    assert not wide_q[..., 22:].any()
    bias = torch.einsum("bihd,bjhd->bijh", wide_q[..., 12:], wide_k[..., 12:]) / math.sqrt(12)
    distance = positions[:, None, :] - positions[:, :, None]
    torch.testing.assert_close(bias, scheme.of_distance(distance, 0), atol=1e-4, rtol=1e-4)
    a, b = scheme.coefficients[0].weight.double().unflatten(0, (2, 5))
    waves = [math.pi / 40 * 40 ** (n / 4) for n in range(5)]
    by_hand = sum(a[n] * math.cos(w * 36) + b[n] * math.sin(w * 36) for n, w in enumerate(waves))
    torch.testing.assert_close(bias[0, 1, 2].double(), by_hand, atol=1e-4, rtol=1e-4)


def test_one_frequency_is_the_slowest():
    assert CosineBiasPosition(head_dim=8, num_heads=2, max_positions=64, num_frequencies=1).frequencies == (
        math.pi / 64,
    )


@pytest.mark.parametrize("per_layer", [False, True])
def test_it_starts_near_alibis_penalties_on_each_side(per_layer):
    kwargs = {"num_frequencies": 64, "max_positions": 128, "per_layer": per_layer}
    scheme = CosineBiasPosition(head_dim=8, num_heads=8, num_layers=2, **kwargs)
    distance = torch.arange(-127, 128)
    slopes = torch.tensor([2.0**-n for n in range(1, 9)])
    penalty = torch.where(distance < 0, distance * slopes[:, None], -distance * slopes.flip(0)[:, None])
    for layer in range(2):
        bias = scheme.of_distance(distance, layer).T
        seen = penalty > -6
        error = [(row - wanted)[near] for row, wanted, near in zip(bias, penalty, seen, strict=True)]
        assert all((each - each.mean()).abs().max() < 0.5 for each in error)
        change = (bias.softmax(-1) - penalty.softmax(-1)).abs().sum(-1) / 2
        assert change.max() < 0.02
    # Without the ridge they reach millions, which float32 can't add up.
    assert scheme.coefficients[0].weight.abs().max() < 12


def test_least_squares_weigh_what_gets_most_attention():
    penalty = -(2.0 ** -torch.arange(1, 9).double())[:, None] * torch.arange(-511, 512).abs()
    _, fitted = fit_cosines(cut_bias(penalty), geometric_frequencies(16, 512))
    assert ((fitted.softmax(-1) - penalty.softmax(-1)).abs().sum(-1) / 2).max() < 0.02


def test_its_length_is_kept_in_the_config_and_outlives_a_change_of_max_position_embeddings(tmp_path):
    model = encoder("cosine_bias")
    assert model.position.max_length == model.config.position_embedding_kwargs["max_length"] == 64
    model.save_pretrained(tmp_path)
    again = PosEncModel.from_pretrained(tmp_path, max_position_embeddings=128).eval()
    assert again.position.frequencies == model.position.frequencies
    ids = tokens(2, 64)
    assert torch.equal(again(ids).last_hidden_state, model(ids).last_hidden_state)
    with pytest.raises(ValueError, match="'cosine_bias' has 64 positions, the input has 65. Truncate to 64 tokens"):
        again(tokens(2, 65))


def test_a_packed_batch_gives_the_numbers_of_a_padded_one_and_of_each_text_alone():
    model, texts = encoder("rope+cosine_bias"), [tokens(n, seed=n) for n in (9, 1, 6)]
    alone = [model(text[None]).last_hidden_state[0] for text in texts]
    ids, mask = padded(texts)
    rows = model(ids, attention_mask=mask).last_hidden_state
    packed = model(torch.cat(texts)[None], position_ids=torch.cat([torch.arange(len(text)) for text in texts])[None])
    split = packed.last_hidden_state[0].split([len(text) for text in texts])
    for row, part, text in zip(rows, split, alone, strict=True):
        torch.testing.assert_close(row[: len(text)], text, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(part, text, atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """The most entries of any tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = [value for value in torch.utils._pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
        # What a view repeats isn't in memory.
        sizes = [value.untyped_storage().nbytes() // value.element_size() for value in made]
        self.entries = max([self.entries, *sizes])
        return result


def largest(scheme: str, length: int, has_padding: bool) -> int:
    """Entries of the largest tensor of a training step."""
    fields = {"max_position_embeddings": length, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 2}
    model = PosEncForSequenceClassification(tiny_config(scheme, **fields))
    mask = torch.ones(1 + has_padding, length, dtype=torch.long)
    mask[1:, length // 4 :] = 0
    with Largest() as seen:
        model(tokens(*mask.shape), attention_mask=mask, labels=torch.arange(len(mask))).loss.backward()
    return seen.entries


@pytest.mark.parametrize("longest", [4096, pytest.param(8192, marks=pytest.mark.slow)])
@pytest.mark.parametrize("has_padding", [False, True])
def test_no_tensor_of_a_training_step_grows_with_the_square_of_the_length(has_padding, longest):
    assert largest("alibi", 1024, has_padding) >= 2 * 1024**2
    short, long = (largest("cosine_bias", length, has_padding) for length in (1024, longest))
    assert short < 1024**2 / 8
    assert long <= 1.01 * short * longest / 1024


def test_bad_arguments_are_named():
    for kwargs, message in (
        ({"num_frequencies": 0}, "num_frequencies=0 is out of range"),
        ({"num_frequencies": 2000}, "num_frequencies=2000 is out of range.*from 1 to 1024"),
        ({"max_length": 1}, "max_length=1 is out of range. It must be a whole number from 2"),
        ({"max_length": 2.5}, r"max_length=2\.5 is out of range"),
        ({"max_length": 2**17 + 1}, "max_length=131073 is out of range.*to 131072"),
        ({"per_layer": 1}, "'per_layer'.*=1 is neither True nor False"),
    ):
        with pytest.raises(ValueError, match=message):
            make_position(tiny_config("cosine_bias", position_embedding_kwargs=kwargs))


def test_angles_stay_float32_in_half_precision():
    scheme = CosineBiasPosition(head_dim=8, num_heads=4, max_positions=4096)
    rounded = perturb(CosineBiasPosition(head_dim=8, num_heads=4, max_positions=4096)).to(torch.bfloat16)
    rounded.load_state_dict(scheme.state_dict())
    far = torch.arange(4000, 4020)[None]
    q = torch.zeros(1, 20, 4, 8)
    (exact, _), (half, _) = (
        part.rotate(x, x, part.rotary(Tokens.at(far)), 0) for part, x in ((scheme, q), (rounded, q.bfloat16()))
    )
    assert half.dtype == torch.bfloat16
    # Coefficients and entries are rounded to 2^-9 of them; a rounded angle would be another one altogether.
    torch.testing.assert_close(half.float(), exact, atol=0.02, rtol=0.02)
