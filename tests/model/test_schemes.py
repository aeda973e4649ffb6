"""Each scheme alone, without an encoder: its formula, its options, its errors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_posenc import (
    SCHEMES,
    DualTrianglePosition,
    FourierPosition,
    LearnedPosition,
    LSPEPosition,
    NoPosition,
    PoPEPosition,
    PosEncConfig,
    RotaryPosition,
    SinusoidalPosition,
    Tokens,
    apply_rotary,
    make_scheme,
    register_scheme,
    sinusoidal_table,
)
from tests.support.common import BUILTIN, assert_equal_with_gradients, tiny_config
from tests.support.references import REFERENCES, sine_table

ADDED = {
    "sinusoidal": SinusoidalPosition,
    "learned": LearnedPosition,
    "lspe": LSPEPosition,
    "fourier": FourierPosition,
}
f64 = torch.float64


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12], [4, 0, 104, 9, 1, 0]])
def test_added_schemes_and_their_gradients_equal_their_reference_at_any_positions(name, positions):
    scheme, positions = ADDED[name](hidden_size=24), torch.tensor(positions)
    x = torch.randn(2, 6, 24, requires_grad=True)
    expected = torch.stack([REFERENCES[name](scheme).embed(row.to(f64), positions) for row in x])
    got = scheme(x, positions)
    assert_equal_with_gradients(got, expected, x, *scheme.parameters(), atol=1e-4)
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scheme(x, positions.expand(2, 6)), got)
    torch.testing.assert_close(scheme(x[0], positions), got[0])
    torch.testing.assert_close(scheme(x), scheme(x, torch.arange(6)))
    torch.testing.assert_close(x + scheme.encodings(positions), got)


@pytest.mark.parametrize("name", ["none", *ADDED])
def test_dropout_acts_in_training_only(name):
    scheme = make_scheme(tiny_config(name, hidden_size=24, position_embedding_kwargs={"dropout": 0.5}))
    x = torch.ones(4, 50, 24)
    assert 0.4 < (scheme(x, torch.arange(3, 53)) == 0).float().mean() < 0.6
    tokens = Tokens.from_positions(torch.arange(50).expand(4, 50))
    torch.testing.assert_close(scheme.eval()(x), scheme.embed(x, tokens))
    assert name != "none" or scheme(x) is x


@settings(max_examples=40, deadline=None)
@given(dim=st.integers(1, 40), start=st.integers(0, 5000), length=st.integers(1, 8))
def test_sinusoidal_table_takes_any_start_and_odd_sizes(dim, start, length):
    positions = torch.arange(start, start + length)
    table = sinusoidal_table(positions, dim)
    assert table.dtype == torch.float32
    # float32 holds an angle of 5,000 to 2.4e-4.
    torch.testing.assert_close(table.double(), sine_table(positions, dim, 10000.0), atol=4e-4, rtol=0)


def test_sinusoid_is_the_published_formula_unless_scaled():
    x = torch.zeros(1, 4, 16)
    torch.testing.assert_close(SinusoidalPosition(hidden_size=16)(x)[0], sinusoidal_table(torch.arange(4), 16))
    scaled = SinusoidalPosition(hidden_size=16, rms=0.02)(torch.zeros(1, 400, 16))
    assert scaled.square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-5)
    table = sinusoidal_table(torch.arange(512), 128)
    assert table.square().mean().sqrt().item() == pytest.approx(math.sqrt(0.5), rel=1e-5)  # as the docstring says


def test_a_learned_scale_starts_as_the_fixed_one_and_is_a_factor_of_it():
    positions = torch.arange(9)
    for rms in (None, 0.02):
        fixed = SinusoidalPosition(hidden_size=16, rms=rms)
        learned = SinusoidalPosition(hidden_size=16, rms=rms, learned_scale=True)
        assert torch.equal(learned.encodings(positions), fixed.encodings(positions))
        # One step of Adam changes what is added by the learning rate's share of it, whatever its scale.
        optimizer = torch.optim.Adam(learned.parameters(), lr=0.1)
        learned.encodings(positions).square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(learned.encodings(positions), 0.9 * fixed.encodings(positions), atol=0, rtol=1e-5)
    assert list(SinusoidalPosition(hidden_size=16).parameters()) == []


@pytest.mark.parametrize("scheme", [FourierPosition, LSPEPosition])
def test_a_network_is_the_published_formula_unless_scaled(scheme):
    published, scaled = scheme(hidden_size=16), scheme(hidden_size=16, rms=0.02)
    scaled.load_state_dict(published.state_dict())
    positions = torch.arange(100)
    encodings = published.encodings(positions)  # compared with its reference above
    torch.testing.assert_close(scaled.encodings(positions), 0.02 * encodings)


@pytest.mark.parametrize("gamma", [1.0, 4.0, 30.0])
def test_fourier_features_start_as_the_published_kernel(gamma):
    """r(p) . r(q) of frequencies drawn from N(0, 1/gamma^2) is exp(-(p - q)^2 / (2 gamma^2)) / 2 on average."""
    r = FourierPosition(hidden_size=8, num_frequencies=2000, gamma=gamma).features(torch.arange(40))
    expected = 0.5 * torch.exp(-(torch.arange(40) ** 2) / (2 * gamma**2))
    torch.testing.assert_close(r @ r[0], expected, atol=5e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_learned_fourier_features_stay_exact_in_half_precision(dtype):
    scheme = FourierPosition(hidden_size=32)
    with torch.no_grad():
        scheme.shifts.weight.normal_()
    positions = torch.arange(3990, 4010)
    full = scheme.features(positions)
    rounded = scheme.to(dtype)
    assert rounded.shifts.weight.dtype == dtype
    # A shift of 3 radians at position 512 is off by 2^-9 of it, 8 times as much at position 4,000.
    torch.testing.assert_close(rounded.features(positions), full, atol=3 * 8 * 2**-9 * 32**-0.5, rtol=0)


@pytest.mark.parametrize("name", ["lspe", "fourier"])
def test_fresh_networks_tell_positions_apart(name):
    scheme = ADDED[name](hidden_size=128, rms=0.02)
    table = scheme.encodings(torch.arange(512))
    cosine = torch.nn.functional.cosine_similarity(table[:, None], table[None], dim=-1)
    mean_cosine = (cosine.sum() - 512) / (512 * 511)
    assert abs(mean_cosine) < 0.05
    assert table.mean(0).abs().max() < 1e-5
    assert table.square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-3)
    # Neighbours are more alike than strangers: the features' geometry survives the network.
    assert cosine.diagonal(1).mean() > cosine.diagonal(100).mean() + 0.3


@pytest.mark.parametrize("activation", ["sigmoid", "gelu", "relu", "tanh"])
def test_lspe_takes_other_activations_and_widths(activation):
    scheme = LSPEPosition(hidden_size=32, intermediate_size=20, activation=activation)
    assert scheme.up.weight.shape == (20, 32)
    table = scheme.encodings(torch.arange(100))
    assert table.square().mean().sqrt() > 1e-3
    pe = sine_table(torch.arange(100), 32, 10000.0).float()
    function = {"gelu": torch.nn.functional.gelu}.get(activation) or getattr(torch, activation)
    torch.testing.assert_close(table, scheme.down(function(scheme.up(pe))), atol=1e-4, rtol=1e-4)


def test_lspe_on_embeddings_is_the_other_variant_and_has_no_encodings():
    scheme = LSPEPosition(hidden_size=16, applies_to="embeddings")
    x = torch.randn(1, 5, 16)
    pe = sinusoidal_table(torch.arange(5), 16)
    torch.testing.assert_close(scheme(x), x + scheme.down(torch.sigmoid(scheme.up(x + pe))))
    with pytest.raises(ValueError, match="no encodings to read"):
        scheme.encodings(torch.arange(5))


def test_apply_rotary_takes_every_shape_and_a_start():
    x = torch.randn(2, 3, 5, 8)
    whole = apply_rotary(x, start=4)
    positions = torch.arange(4, 9)
    for got in (
        apply_rotary(x, positions),
        apply_rotary(x, positions.expand(2, 5)),
        torch.stack([apply_rotary(part, positions) for part in x]),
        torch.stack([torch.stack([apply_rotary(head, start=4) for head in part]) for part in x]),
    ):
        torch.testing.assert_close(got, whole)
    rows = torch.tensor([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]])
    torch.testing.assert_close(apply_rotary(x, rows)[1], apply_rotary(x[1], rows[1]))


@pytest.mark.parametrize("name", BUILTIN)
def test_every_scheme_says_its_name_formula_source_and_cost(name):
    scheme = SCHEMES[name]
    assert scheme.name == name
    assert "arXiv" in scheme.__doc__ or "ACL" in scheme.__doc__
    assert "Cost" in scheme.__doc__
    assert "=" in scheme.__doc__.splitlines()[0] or "=" in scheme.__doc__.split("\n\n")[0]


def make(name, **kwargs):
    return make_scheme(PosEncConfig(position_embedding_type=name, position_embedding_kwargs=kwargs))


ROWS = torch.zeros(1, 5, 8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LearnedPosition(hidden_size=8, max_positions=9)(ROWS, torch.arange(7, 12)), "positions 0 to 8, .* 11"),
        (lambda: LearnedPosition(hidden_size=8, max_positions=10)(ROWS, torch.arange(-2, 3)), "the input has -2 to 2"),
        (lambda: SinusoidalPosition(hidden_size=0), "hidden_size=0 is out of range"),
        (lambda: SinusoidalPosition(hidden_size=8, rms=-1.0), r"rms=-1\.0 is out of range.*None for the published"),
        (lambda: SinusoidalPosition(hidden_size=8, dropout=2), "dropout=2 is out of range"),
        (lambda: sinusoidal_table(torch.arange(3), 0), "dim=0 is out of range"),
        (lambda: LearnedPosition(hidden_size=8, max_positions=2**24 + 1), "max_positions=16777217 is out of range"),
        (lambda: LSPEPosition(hidden_size=8, intermediate_size=0), "intermediate_size=0 is out of range"),
        (lambda: LSPEPosition(hidden_size=8, activation="sigmoyd"), "activation='sigmoyd' is no activation"),
        (lambda: LSPEPosition(hidden_size=8, applies_to="tokens"), "applies_to='tokens' is unknown"),
        (lambda: apply_rotary(torch.zeros(2, 4), torch.arange(3)), r"positions of shape \(3,\) don't fit x"),
        (lambda: FourierPosition(hidden_size=8, num_frequencies=0), "num_frequencies=0 is out of range"),
        (lambda: FourierPosition(hidden_size=8, intermediate_size=2.5), r"intermediate_size=2\.5 is out of range"),
        (lambda: FourierPosition(hidden_size=8, gamma=0), "gamma=0 is out of range"),
        (lambda: FourierPosition(hidden_size=8, reference_length=0), "reference_length=0 is out of range"),
        (lambda: FourierPosition(hidden_size=8, rms=0), "rms=0 is out of range.*None for the published"),
        (lambda: LSPEPosition(hidden_size=8, base=math.inf), "base=inf is out of range"),
        (lambda: LSPEPosition(hidden_size=8, dropout=-1), "dropout=-1 is out of range. A probability"),
        (lambda: make("tupe", std=math.inf), "std=inf is out of range"),
        (lambda: make("deberta", max_distance=2.5), r"max_distance=2\.5 is out of range"),
        (
            lambda: make("deberta", max_distance=2, position_buckets=4),
            "max_distance=2 is out of range. It must be a whole number from 3 to",
        ),
        (lambda: make("t5", max_distance="x"), "max_distance='x' is out of range"),
        (lambda: make("pope", theta=1e-300), r"theta=1e-300 is out of range.* \(1e-30 to 1e\+30\)"),
        (lambda: make("sinusoidal", base=10**400), "base=1000"),
        (lambda: DualTrianglePosition(num_heads=1), "num_attention_heads is 1. Raise it to 2 or more"),
        (lambda: make("window", sliding_window=0), "sliding_window=0 is out of range"),
        (lambda: make("window", global_attn_every_n_layers=1), "global_attn_every_n_layers=1 is out of range"),
        (lambda: make("toeplitz", max_distance=0), "max_distance=0 is out of range"),
        (lambda: make("toeplitz", initial_std=-1), "initial_std=-1 is out of range"),
        (lambda: make("t5", initial_std=0), "initial_std=0 is out of range. It must be a positive number"),
        (lambda: make("alibi", per_layer=True, learned=False), "per_layer=True has no effect with learned=False. Lea"),
        (lambda: make("fire", threshold=2.0**25), r"threshold=33554432\.0 is out of range"),
        (lambda: apply_rotary(torch.zeros(2, 16), scheme=RotaryPosition(head_dim=8)), "has head_dim=8"),
        (
            lambda: apply_rotary(torch.zeros(2, 8), scheme=PoPEPosition(head_dim=8, num_heads=1, num_layers=1)),
            "'pope' makes 16 entries of x's 8",
        ),
        (lambda: apply_rotary(torch.zeros(2, 3, 5, 8), torch.zeros(3, 5)), r"positions of shape \(3, 5\) don't fit x"),
        (
            lambda: NoPosition()(ROWS, torch.arange(4)),
            r"positions of shape \(4,\) don't fit x. Give \(1, 5\) or \(5,\)",
        ),
        (lambda: RotaryPosition(head_dim=8)(ROWS), r"RotaryPosition adds nothing.*Call apply_rotary\.$"),
        (lambda: make("t5")(ROWS), r"T5Position adds nothing to embeddings\. Call its bias\.$"),
        (lambda: apply_rotary(torch.zeros(2, 8), scheme=NoPosition()), r"NoPosition rotates nothing.*scheme\(x\)"),
        (lambda: register_scheme(RotaryPosition, "other"), "RotaryPosition is registered as 'rope' already"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_t5_starts_with_biases_of_the_given_scale():
    for kwargs, expected in (({}, 1.0), ({"initial_std": 0.3, "per_layer": True}, 0.3)):
        tables = torch.cat([table.weight.flatten() for table in make("t5", max_distance=999, **kwargs).tables])
        assert tables.std().item() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(("kernel", "most"), [("log", (2.0, 1.0)), ("power", (1.0, 1.9))])
def test_kerple_starts_in_the_ranges_of_its_authors_code(kernel, most):
    scheme = make("kerple", kernel=kernel)
    bias = scheme.bias(Tokens.from_positions(torch.arange(3)[None]))[0].double()
    far = bias[:, 2, :2].flip(1)  # to the left
    torch.testing.assert_close(bias[:, 0, 1:], far.flip(0))  # to the right: the heads the other way round
    grid = torch.arange(1, 13).double() / 12
    r1, r2 = most[0] * grid, most[1] * grid.flip(0)
    for distance in (1, 2):
        expected = -r1 * torch.log1p(r2 * distance) if kernel == "log" else -r1 * distance**r2
        torch.testing.assert_close(far[:, distance - 1], expected, atol=1e-5, rtol=1e-5)
