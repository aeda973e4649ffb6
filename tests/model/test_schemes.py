"""Each scheme alone, without an encoder: its formula, its options, its errors."""

import math
from dataclasses import replace

import pytest
import torch
from common import BUILTIN, assert_equal_with_gradients, encoder, tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st
from references import REFERENCES, sine_table

from hf_posenc import (
    SCHEMES,
    PosEncConfig,
    PositionScheme,
    apply_rotary,
    make_scheme,
    register_scheme,
    sinusoidal_table,
)
from hf_posenc.model.scheme_table import (
    CablePosition,
    DualTrianglePosition,
    FourierPosition,
    LearnedPosition,
    LSPEPosition,
    NoPosition,
    PoPEPosition,
    RotaryPosition,
    SinusoidalPosition,
)
from hf_posenc.model.unpadding import Rows, TokenLayout, Tokens

ADDED = {
    "sinusoidal": SinusoidalPosition,
    "learned": LearnedPosition,
    "lspe": LSPEPosition,
    "fourier": FourierPosition,
}
f64 = torch.float64


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("start", [0, 7, 100])
def test_added_schemes_equal_their_reference_from_any_start(name, start):
    scheme = ADDED[name](hidden_size=24)
    x, positions = torch.randn(2, 6, 24), torch.arange(start, start + 6)
    expected = torch.stack([REFERENCES[name](scheme).embed(row.to(f64), positions) for row in x])
    got = scheme(x, positions)
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scheme(x, positions.expand(2, 6)), got)
    torch.testing.assert_close(scheme(x[0], positions), got[0])
    torch.testing.assert_close(scheme(x), scheme(x, torch.arange(6)))
    torch.testing.assert_close(x + scheme.encodings(positions), got)


@pytest.mark.parametrize("name", ADDED)
def test_added_schemes_gradients_equal_their_reference(name):
    scheme = ADDED[name](hidden_size=24)
    x = torch.randn(6, 24, requires_grad=True)
    positions = torch.tensor([4, 0, 4, 9, 1, 0])
    expected = REFERENCES[name](scheme).embed(x.to(f64), positions)
    assert_equal_with_gradients(scheme(x, positions), expected, x, *scheme.parameters(), atol=1e-4)


@pytest.mark.parametrize("name", ADDED)
def test_dropout_acts_in_training_only(name):
    scheme = ADDED[name](hidden_size=24, dropout=0.5)
    x = torch.ones(4, 50, 24)
    assert 0.4 < (scheme(x) == 0).float().mean() < 0.6
    tokens = Tokens.from_positions(torch.arange(50).expand(4, 50))
    torch.testing.assert_close(scheme.eval()(x), scheme.embed(x, tokens))


@settings(max_examples=40, deadline=None)
@given(dim=st.integers(1, 40), start=st.integers(0, 5000), length=st.integers(1, 8))
def test_sinusoidal_table_takes_any_start_and_odd_sizes(dim, start, length):
    positions = torch.arange(start, start + length)
    table = sinusoidal_table(positions, dim)
    assert table.dtype == torch.float32
    # float32 holds an angle of 5,000 to 2.4e-4.
    torch.testing.assert_close(table.double(), sine_table(positions, dim, 10000.0), atol=4e-4, rtol=0)


def test_sinusoidal_table_of_512_positions_is_exact_to_float32():
    positions = torch.arange(512)
    expected = sine_table(positions, 64, 10000.0)
    torch.testing.assert_close(sinusoidal_table(positions, 64).double(), expected, atol=4e-5, rtol=0)
    odd = sinusoidal_table(positions, 5)
    torch.testing.assert_close(odd[:, 4], torch.sin(positions / 10000.0**0.8), atol=1e-5, rtol=0)


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
    # Stored as they are, the frequencies would give other angles altogether.
    base = torch.tensor([1.0, 0.3, 0.01])
    assert (torch.cos(4001 * base) - torch.cos(4001 * base.to(torch.bfloat16).float())).abs().max() > 0.1


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


def test_learned_table_starts_with_the_given_standard_deviation():
    for std in (0.5, 0.02):
        table = LearnedPosition(hidden_size=64, max_positions=512, std=std).encodings(torch.arange(512))
        assert table.std().item() == pytest.approx(std, rel=0.05)


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


@settings(max_examples=30, deadline=None)
@given(m=st.integers(0, 500), n=st.integers(0, 500), shift=st.integers(0, 500), interleaved=st.booleans())
def test_rotated_dot_products_depend_on_the_distance_alone(m, n, shift, interleaved):
    q, k = torch.randn(1, 16), torch.randn(1, 16)
    dot = [
        apply_rotary(q, start=m + s, interleaved=interleaved) @ apply_rotary(k, start=n + s, interleaved=interleaved).T
        for s in (0, shift)
    ]
    torch.testing.assert_close(dot[0], dot[1], atol=2e-3, rtol=0)


def test_rotary_module_rotates_q_and_k_and_a_part_of_each_head():
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    module = RotaryPosition(head_dim=8)
    torch.testing.assert_close(apply_rotary(q, start=2, scheme=module), apply_rotary(q, start=2))
    partial = RotaryPosition(head_dim=8, rope_parameters={"partial_rotary_factor": 0.5})
    part_q = apply_rotary(q, start=2, scheme=partial)
    torch.testing.assert_close(part_q[..., 4:], q[..., 4:])
    torch.testing.assert_close(part_q[..., :4], apply_rotary(q[..., :4], start=2))
    # The hooks that the encoder calls agree: (B, S, H, d) there, (B, H, S, d) here.
    positions = torch.arange(2, 7).expand(2, 5)
    hook_q, hook_k = partial.rotate(
        q.transpose(1, 2), k.transpose(1, 2), partial.rotary(Tokens.from_positions(positions)), 0
    )
    torch.testing.assert_close(hook_q.transpose(1, 2), part_q)
    torch.testing.assert_close(hook_k.transpose(1, 2)[..., 4:], k[..., 4:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sinusoids_stay_float32_in_half_precision(dtype):
    positions = torch.arange(4000, 4004)
    added = SinusoidalPosition(hidden_size=8)(torch.zeros(1, 4, 8, dtype=dtype), positions)
    assert added.dtype == dtype
    torch.testing.assert_close(added.float(), sinusoidal_table(positions, 8)[None], atol=0.01, rtol=0)


@pytest.mark.parametrize("name", BUILTIN)
def test_every_scheme_says_its_name_formula_source_and_cost(name):
    scheme = SCHEMES[name]
    assert scheme.name == name
    assert "arXiv" in scheme.__doc__ or "ACL" in scheme.__doc__
    assert "Cost" in scheme.__doc__
    assert "=" in scheme.__doc__.splitlines()[0] or "=" in scheme.__doc__.split("\n\n")[0]


def make(name, **kwargs):
    return make_scheme(PosEncConfig(position_embedding_type=name, position_embedding_kwargs=kwargs))


def rotary(**parameters):
    return RotaryPosition(head_dim=8, rope_parameters=parameters)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SinusoidalPosition(hidden_size=0), "hidden_size=0 is out of range"),
        (lambda: SinusoidalPosition(hidden_size=8, base=0), "base=0 is out of range"),
        (lambda: SinusoidalPosition(hidden_size=8, rms=-1.0), r"rms=-1\.0 is out of range.*None for the published"),
        (lambda: SinusoidalPosition(hidden_size=8, dropout=2), "dropout=2 is out of range"),
        (lambda: sinusoidal_table(torch.arange(3), 0), "dim=0 is out of range"),
        (lambda: sinusoidal_table(torch.arange(3), 4, base=-1), "base=-1 is out of range"),
        (lambda: LearnedPosition(hidden_size=8, max_positions=0), "max_positions=0 is out of range"),
        (lambda: LearnedPosition(hidden_size=8, max_positions=2**24 + 1), "max_positions=16777217 is out of range"),
        (lambda: LearnedPosition(hidden_size=8, std=-1), "std=-1 is out of range"),
        (lambda: LSPEPosition(hidden_size=8, intermediate_size=0), "intermediate_size=0 is out of range"),
        (lambda: LSPEPosition(hidden_size=8, activation="sigmoyd"), "activation='sigmoyd' is no activation"),
        (lambda: LSPEPosition(hidden_size=8, applies_to="tokens"), "applies_to='tokens' is unknown"),
        (lambda: LSPEPosition(hidden_size=8, rms=0), "rms=0 is out of range"),
        (lambda: RotaryPosition(head_dim=7), "7 of head_dim=7 entries would be turned"),
        (lambda: apply_rotary(torch.zeros(2, 5)), "5 of head_dim=5 entries would be turned"),
        (lambda: apply_rotary(torch.zeros(2, 4), torch.arange(3)), r"positions of shape \(3,\) don't fit x"),
        (lambda: apply_rotary(torch.zeros(3, 2, 4), torch.zeros(3, 2)), r"positions of shape \(3, 2\) don't fit x"),
        (lambda: apply_rotary(torch.zeros(2, 4), torch.zeros(1)), r"positions of shape \(1,\) don't fit x"),
        (lambda: apply_rotary(torch.zeros(2, 4), rope_theta=0), "rope_parameters: rope_theta=0 is out of range"),
        (lambda: rotary(rope_type="spiral"), "rope_type='spiral' is unknown"),
        (lambda: rotary(thetta=1), "rope_parameters has no 'thetta'"),
        (lambda: rotary(partial_rotary_factor=2), "partial_rotary_factor=2 is out of range"),
        (lambda: LSPEPosition(hidden_size=0), "hidden_size=0 is out of range"),
        (lambda: FourierPosition(hidden_size=0), "hidden_size=0 is out of range"),
        (lambda: FourierPosition(hidden_size=8, num_frequencies=0), "num_frequencies=0 is out of range"),
        (lambda: FourierPosition(hidden_size=8, intermediate_size=2.5), r"intermediate_size=2\.5 is out of range"),
        (lambda: FourierPosition(hidden_size=8, gamma=0), "gamma=0 is out of range"),
        (lambda: FourierPosition(hidden_size=8, reference_length=0), "reference_length=0 is out of range"),
        (lambda: FourierPosition(hidden_size=8, rms=0), "rms=0 is out of range.*None for the published"),
        (lambda: LSPEPosition(hidden_size=8, base=math.inf), "base=inf is out of range"),
        (lambda: LSPEPosition(hidden_size=8, dropout=-1), "dropout=-1 is out of range. A probability"),
        (lambda: LearnedPosition(hidden_size=0), "hidden_size=0 is out of range"),
        (lambda: LearnedPosition(hidden_size=8, std=math.inf), "std=inf is out of range"),
        (lambda: LearnedPosition(hidden_size=8, std=True), "std=True is out of range"),
        (lambda: SinusoidalPosition(hidden_size=8, rms=math.nan), "rms=nan is out of range"),
        (lambda: NoPosition(dropout=2), "dropout=2 is out of range"),
        (lambda: make("tupe", std=math.inf), "std=inf is out of range"),
        (lambda: make("tupe", std=None), "std=None is out of range"),
        (lambda: make("deberta", std=-1), "std=-1 is out of range"),
        (lambda: make("deberta", std=None), "std=None is out of range"),
        (lambda: make("deberta", max_distance=2.5), r"max_distance=2\.5 is out of range"),
        (lambda: make("t5", num_buckets="8"), "num_buckets='8' is out of range"),
        (lambda: make("t5", max_distance="x"), "max_distance='x' is out of range"),
        (lambda: make("pope", theta=0), "theta=0 is out of range"),
        (lambda: make("pope", theta=1e-300), r"theta=1e-300 is out of range.* \(1e-30 to 1e\+30\)"),
        (lambda: make("sinusoidal", base=10**400), "base=1000"),
        (lambda: apply_rotary(torch.zeros(2, 8), rope_theta=10**400), "rope_theta=1000"),
        (lambda: DualTrianglePosition(num_heads=1), "num_attention_heads is 1. Raise it to 2 or more"),
        (lambda: make("window", sliding_window=0), "sliding_window=0 is out of range"),
        (lambda: make("window", global_attn_every_n_layers=1), "global_attn_every_n_layers=1 is out of range"),
        (lambda: make("toeplitz", max_distance=0), "max_distance=0 is out of range"),
        (lambda: make("toeplitz", initial_std=-1), "initial_std=-1 is out of range"),
        (lambda: make("t5", initial_std=0), "initial_std=0 is out of range. It must be a positive number"),
        (
            lambda: make("alibi", per_layer=True, learned=False),
            "per_layer=True has no effect with learned=False. Leave",
        ),
        (lambda: make("fire", threshold="a"), "threshold='a' is out of range"),
        (lambda: make("fire", threshold=2.0**25), r"threshold=33554432\.0 is out of range"),
        (lambda: make("fire", intermediate_size=3.5), r"intermediate_size=3\.5 is out of range"),
        (lambda: make("mlp_bias", intermediate_size=None), "intermediate_size=None is out of range"),
        (lambda: apply_rotary(torch.zeros(2, 8), rope_theta=True), "rope_theta=True is out of range"),
        (lambda: apply_rotary(torch.zeros(2, 16), scheme=RotaryPosition(head_dim=8)), "has head_dim=8"),
        (
            lambda: apply_rotary(torch.zeros(2, 8), scheme=PoPEPosition(head_dim=8, num_heads=1, num_layers=1)),
            "'pope' makes 16 entries of x's 8",
        ),
        (lambda: apply_rotary(torch.zeros(2, 3, 5, 8), torch.zeros(3, 5)), r"positions of shape \(3, 5\) don't fit x"),
        (
            lambda: NoPosition()(torch.zeros(2, 5, 8), torch.arange(4)),
            r"positions of shape \(4,\) don't fit x. Give \(2, 5\) or \(5,\)",
        ),
        (
            lambda: RotaryPosition(head_dim=8)(torch.zeros(5, 8)),
            "RotaryPosition adds nothing.*Call apply_rotary",
        ),
        (lambda: make("t5")(torch.zeros(5, 8)), "T5Position adds nothing to embeddings. Call .* bias"),
        (lambda: apply_rotary(torch.zeros(2, 8), scheme=NoPosition()), r"NoPosition rotates nothing.*scheme\(x\)"),
        (lambda: register_scheme(5, "x"), "scheme=5 is no PositionScheme"),
        (lambda: register_scheme(RotaryPosition, "other"), "RotaryPosition is registered as 'rope' already"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_positions_past_the_table_raise_the_same_error():
    scheme = LearnedPosition(hidden_size=8, max_positions=10)
    with pytest.raises(ValueError, match="has positions 0 to 9, the input has . to 11"):
        scheme(torch.zeros(1, 5, 8), torch.arange(7, 12))
    with pytest.raises(ValueError, match="has positions 0 to 9, the input has -2 to 2"):
        scheme(torch.zeros(1, 5, 8), torch.arange(-2, 3))
    with pytest.raises(ValueError, match="has positions 0 to 9, the input has . to 10"):
        scheme(torch.zeros(1, 2, 8), torch.tensor([0, 10]))
    with pytest.raises(ValueError, match="has positions 0 to 9, the input has 0 to 10"):
        scheme(torch.zeros(1, 11, 8))


class Nothing(PositionScheme):
    pass


class Something(PositionScheme):
    def embed(self, x, tokens):
        return x + 1


def test_register_scheme_refuses_what_would_not_work(monkeypatch):
    with pytest.raises(ValueError, match=r"name='a\+b' can't name a scheme.*'\+' joins"):
        register_scheme(Something, "a+b")
    with pytest.raises(ValueError, match="name='rope' is taken by RotaryPosition"):
        register_scheme(Something, "rope")
    with pytest.raises(ValueError, match="Nothing overrides no hook"):
        register_scheme(Nothing, "nothing")
    monkeypatch.setitem(SCHEMES, "something", Something)
    register_scheme(Something, "something")
    assert register_scheme(Something) == ["something"]  # by its name


class Demanding(PositionScheme):
    def __init__(self, *, width):
        super().__init__()

    def embed(self, x, tokens):
        return x


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


@pytest.mark.parametrize(
    ("name", "published"), [("alibi", {"directional": False, "learned": False}), ("kerple", {"directional": False})]
)
def test_symmetric_biases_tell_left_from_right_by_special_tokens_alone(name, published):
    model = encoder(name, position_embedding_kwargs=published)

    def mean(*ids):
        return model(torch.tensor([ids])).last_hidden_state.mean(dim=1)

    torch.testing.assert_close(mean(5, 6, 7, 8), mean(8, 7, 6, 5), atol=1e-5, rtol=0)
    assert (mean(2, 5, 6, 7, 8, 3) - mean(2, 8, 7, 6, 5, 3)).abs().max() > 1e-3  # [CLS] ... [SEP]


def test_cable_adds_the_shares_of_the_tokens_between_two_of_a_sequence():
    scheme = CablePosition(hidden_size=8, num_heads=2, num_layers=1)
    positions, sequence = torch.tensor([[1, 0, 2, 0, 1]]), torch.tensor([[0, 0, 0, 1, 1]])
    packed = Rows(TokenLayout.from_batch(positions, position_ids=positions, seq_idx=sequence, unpad=False)).tokens()
    x = torch.randn(1, 5, 8)
    bias = scheme.layer_bias(x, x, replace(packed, hidden=x), 0)[0]
    left, right = torch.nn.functional.softplus(scheme.shares[0](x))[0].split(2, -1)
    torch.testing.assert_close(bias[:, 2, 1], -(left[0] + left[2]))
    torch.testing.assert_close(bias[:, 1, 2], -(right[0] + right[2]))
    torch.testing.assert_close(bias[:, 3, 4], -right[4])
    torch.testing.assert_close(bias[:, 4, 3], -left[4])


def test_a_scheme_whose_argument_is_missing_says_which(monkeypatch):
    monkeypatch.setitem(SCHEMES, "demanding", Demanding)
    with pytest.raises(ValueError, match=r"position_embedding_kwargs={} doesn't fit 'demanding'.*'width'"):
        make("demanding")


def test_none_stands_in_for_any_added_scheme():
    x = torch.ones(4, 50, 24)
    assert NoPosition()(x) is x
    for name in ("none", *ADDED):
        scheme = make_scheme(tiny_config(name, hidden_size=24))
        assert scheme(x, torch.arange(3, 53)).shape == x.shape
    assert 0.4 < (NoPosition(dropout=0.5)(x) == 0).float().mean() < 0.6
