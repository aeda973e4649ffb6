"""RoPE scalings: their frequencies, and that a sequence's angles depend on its own length alone."""

import json

import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from hf_posenc import PosEncConfig, PosEncModel, RotaryPosition, RotatedPosition, Tokens, apply_rotary, kernels
from tests.support.common import assert_equal_with_gradients, encoder, padded, tiny_config, tokens
from tests.support.references import LLAMA3, rope, scalings

f64 = torch.float64


KINDS = list(scalings(4, 64))


def test_every_type_is_tested():
    with pytest.raises(ValueError, match="is unknown") as refused:
        RotaryPosition(head_dim=8, rope_parameters={"rope_type": "none"})
    accepted = str(refused.value).partition("Choose one of ")[2].rstrip(".").split(", ")
    assert {parameters["rope_type"] for parameters in scalings(4, 64).values()} == set(accepted)


def llama(parameters: dict, head_dim: int, trained: int) -> LlamaRotaryEmbedding:
    scaling = {"rope_theta": 10000.0, **parameters}
    if parameters["rope_type"] == "dynamic":  # transformers takes the trained length from elsewhere
        scaling.pop("original_max_position_embeddings")
    sizes = {"hidden_size": 2 * head_dim, "num_attention_heads": 2, "head_dim": head_dim}
    return LlamaRotaryEmbedding(LlamaConfig(**sizes, max_position_embeddings=trained, rope_parameters=scaling))


# Llama's default ignores partial_rotary_factor, and proportional has it in any case.
PARTIAL = [
    (kind, partial)
    for kind in KINDS
    for partial in ((False,) if kind in ("default", "proportional") else (False, True))
]


@pytest.mark.parametrize("last", [99, 127, 128, 4100])
@pytest.mark.parametrize(("kind", "partial"), PARTIAL)
def test_angles_and_gradients_equal_transformers_llama(kind, partial, last):
    head_dim, trained = 64, 128
    parameters = scalings(16 if partial else 32, trained)[kind] | ({"partial_rotary_factor": 0.5} if partial else {})
    positions = torch.cat((torch.arange(8), torch.arange(last - 40, last + 1)))[None]
    q, k = torch.randn(2, 1, 2, 49, head_dim).unbind(0)
    # A module for each: what it saw before changes the next result of transformers' own.
    cos, sin = llama(parameters, head_dim, trained)(q, positions)
    mine = RotaryPosition(head_dim=head_dim, rope_parameters=parameters)
    size = mine.rotary_dim
    assert size == (32 if partial else 64)
    got_cos, got_sin = mine.cos_sin(positions, torch.tensor([[last + 1]])).chunk(2, -1)
    torch.testing.assert_close(got_cos, cos, atol=1e-5, rtol=0)
    torch.testing.assert_close(got_sin, sin, atol=1e-5, rtol=0)

    leaves = [t.clone().requires_grad_() for t in (q, k)]
    theirs = apply_rotary_pos_emb(*(t[..., :size] for t in leaves), cos, sin)
    theirs = torch.stack([torch.cat((a, b[..., size:]), -1) for a, b in zip(theirs, leaves, strict=True)])
    ours = torch.stack([apply_rotary(leaf, positions, scheme=mine) for leaf in leaves])
    assert_equal_with_gradients(ours, theirs, *leaves)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("last", [40, 300])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_rotation_equals_its_float64_twin_in_values_and_gradients(share, last, interleaved):
    parameters = {"rope_theta": 500.0, "partial_rotary_factor": share}
    scheme = RotaryPosition(head_dim=16, rope_parameters=parameters, interleaved=interleaved)
    x = torch.randn(5, 16, requires_grad=True)
    positions = torch.tensor([0, last, 7, last // 2, 7])
    expected = rope(scheme).rotate(x.to(f64), positions)
    # float32 holds an angle of 300 to 1.5e-5.
    mine = apply_rotary(x, positions, scheme=scheme)
    assert_equal_with_gradients(mine, expected, x, atol=2e-4)
    # What is traced or transformed takes another way.
    by_vmap = torch.func.vmap(lambda each: apply_rotary(each, positions, scheme=scheme))(x[None])[0]
    torch.testing.assert_close(by_vmap, mine)


@pytest.mark.parametrize("pairing", [False, True])
def test_a_rotation_of_an_authors_own_needs_its_angles_alone(pairing):
    class Mine(RotatedPosition):
        interleaved = pairing

        def angles(self, positions):
            return positions[..., None] * 10000.0 ** (-torch.arange(3) / 3)

    x = torch.randn(2, 3, 5, 10)  # the last four entries stay
    got = apply_rotary(x, start=4, scheme=Mine())
    torch.testing.assert_close(got[..., :6], apply_rotary(x[..., :6], start=4, interleaved=pairing))
    assert torch.equal(got[..., 6:], x[..., 6:])


def test_angles_that_are_trained_get_a_gradient():
    scheme, q = RotaryPosition(head_dim=8), torch.randn(5, 2, 8)
    cos, *sines = (x.clone() for x in scheme.rotary(Tokens.from_positions(torch.arange(5))))
    scheme.rotate(q, q, (cos.requires_grad_(), *sines), 0)[0].sum().backward()
    torch.testing.assert_close(cos.grad, q.sum(-2, keepdim=True))


@pytest.mark.parametrize("pairing", [False, True])
@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_turns_as_the_code_that_travels(dtype, share, pairing):
    parameters = {"partial_rotary_factor": share}
    scheme = RotaryPosition(head_dim=8, rope_parameters=parameters, interleaved=pairing)
    state = scheme.rotary(Tokens.from_positions(torch.arange(5)))
    q, k, *gradients = (torch.randn(5, 2, 8, dtype=dtype, requires_grad=True) for _ in range(4))
    results = []
    try:
        for enabled in (True, False):
            kernels.set_enabled(enabled)
            turned = scheme.rotate(q, k, state, 0)
            results.append((*turned, *torch.autograd.grad(turned, (q, k), gradients)))
    finally:
        kernels.set_enabled(True)
    torch.testing.assert_close(*results)


def packed(*sequences: torch.Tensor) -> dict[str, torch.Tensor]:
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences])
    return {"input_ids": torch.cat(sequences)[None], "position_ids": positions[None]}


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_in_the_batch_change_nothing(kind):
    model = encoder("rope", rope_parameters=scalings(4, 128)[kind], num_hidden_layers=1)
    short, long = tokens(100, seed=1), tokens(300, seed=2)
    alone = model(short[None]).last_hidden_state[0]
    for model.config.unpad_inputs in (True, False):
        for side in ("left", "right"):
            ids, mask = padded([short, long], side)
            beside = model(ids, attention_mask=mask).last_hidden_state[0][mask[0] == 1]
            torch.testing.assert_close(beside, alone, atol=1e-5, rtol=1e-5)
        before, after = model(**packed(long, short)).last_hidden_state[0].split((300, 100))
        torch.testing.assert_close(after, alone, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(before, model(long[None]).last_hidden_state[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone, model(short[None], position_ids=torch.arange(100)[None])[0][0])
    if model.position.needs_lengths:  # the long sequence does get other angles, or nothing was shown
        scheme = model.position
        own, others = (scheme.cos_sin(torch.arange(100), torch.full((100,), n)) for n in (100, 300))
        assert (own - others).abs().max() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_keeps_its_scaling_whatever_max_position_embeddings_says(kind, tmp_path):
    parameters = scalings(4, 8)[kind]
    scaling = {key: value for key, value in parameters.items() if key != "original_max_position_embeddings"}
    model = encoder("rope", rope_parameters=scaling, max_position_embeddings=8)
    resolved = dict(model.config.rope_parameters)
    assert resolved.items() >= parameters.items()
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["rope_parameters"] == resolved
    # What follows from the config has been written into it: the length may change, the angles don't.
    (tmp_path / "config.json").write_text(json.dumps(written | {"max_position_embeddings": 999}))
    again = PosEncModel.from_pretrained(tmp_path)
    assert again.config.rope_parameters == resolved
    ids = tokens(2, 12)
    torch.testing.assert_close(again(ids)[0], model(ids)[0], atol=0, rtol=0)
    with torch.device("meta"):
        on_meta = RotaryPosition(head_dim=8, rope_parameters=resolved)
    assert torch.equal(*(scheme.cos_sin(torch.arange(9), torch.full((9,), 9)) for scheme in (on_meta, model.position)))


def completed(config, model=PosEncModel):
    """A config's `rope_parameters` once a model is built."""
    with torch.device("meta"):
        return model(config).config.rope_parameters


def test_what_parameters_lack_follows_from_the_config_or_must_be_given():
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16}
    config = tiny_config("rope", rope_parameters={"rope_type": "longrope", **factors}, max_position_embeddings=64)
    assert completed(config)["factor"] == 4.0
    config = PosEncConfig.from_size("tiny", rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    assert completed(config)["original_max_position_embeddings"] == 512
    scheme = RotaryPosition(head_dim=8, rope_parameters=YARN, max_positions=9)
    assert scheme.rope_parameters["original_max_position_embeddings"] == 9
    with pytest.raises(ValueError, match="lacks 'original_max_position_embeddings' for rope_type='yarn'"):
        RotaryPosition(head_dim=8, rope_parameters=YARN)


def test_loading_with_a_scaling_keeps_the_angles_of_training(tmp_path):
    tiny_config("rope", rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 0.5}).save_pretrained(tmp_path)
    linear = {"rope_type": "linear", "factor": 2.0}
    wanted = {**linear, "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    assert AutoConfig.from_pretrained(tmp_path, rope_parameters=linear).rope_parameters == wanted
    both = AutoConfig.from_pretrained(tmp_path, rope_parameters={**linear, "rope_theta": 7.0})
    assert both.rope_parameters == {**wanted, "rope_theta": 7.0}
    both.save_pretrained(tmp_path)
    for older in ({"rope_scaling": linear}, {"rope_theta": 7.0}, {"partial_rotary_factor": 1.0}):
        for build in (tiny_config, lambda _, **given: AutoConfig.from_pretrained(tmp_path, **given)):
            with pytest.raises(ValueError, match=f"'{min(older)}' isn't taken. Give rope_parameters"):
                build("rope", **older)
    plain = {"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.5}
    for model in (PosEncModel, get_class_from_dynamic_module("modeling_posenc.PosEncModel", tmp_path)):
        for form in ({}, None, {"rope_theta": None, "rope_type": "default"}):  # no scaling any more
            config = model.config_class.from_pretrained(tmp_path, rope_parameters=form)
            assert completed(config, model) == plain


@pytest.mark.parametrize("scheme", ["rope", "learned+rope"])
def test_another_scheme_than_the_files_takes_none_of_its_angles(scheme, tmp_path):
    tiny_config(scheme, rope_parameters={"rope_theta": 500.0}).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters["rope_theta"] == 500.0
    assert AutoConfig.from_pretrained(tmp_path, position_embedding_type="alibi").rope_parameters is None
    both = AutoConfig.from_pretrained(tmp_path, position_embedding_type="sinusoidal+rope")
    assert completed(both)["rope_theta"] == 10000.0


def test_a_scaling_can_be_put_on_when_a_checkpoint_is_loaded(tmp_path, caplog):
    model = encoder("rope", max_position_embeddings=8)
    model.save_pretrained(tmp_path)
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert completed(AutoConfig.from_pretrained(tmp_path, rope_parameters=yarn)) == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 8,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": True,
    }
    longer = PosEncModel.from_pretrained(tmp_path, rope_parameters=yarn).eval()
    assert (longer(tokens(1, 12))[0] - model(tokens(1, 12))[0]).abs().max() > 1e-3
    assert "ecognized keys" not in caplog.text


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
YARN = {"rope_type": "yarn", "factor": 2.0}


def test_dynamic_scaling_begins_at_the_end_of_the_positions_as_in_transformers():
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 99}
    assert completed(tiny_config("rope", max_position_embeddings=8, rope_parameters=dynamic)) == {
        **dynamic,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 8,
    }


@pytest.mark.parametrize("parameters", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}])
def test_a_trained_length_that_the_type_does_not_use_is_kept(parameters):
    """Transformers keeps it there when a scaling is taken off, and its common tests set it beside every type."""
    config = tiny_config("rope", rope_parameters={**parameters, "original_max_position_embeddings": 100})
    model = PosEncModel(config)
    assert config.rope_parameters == {"rope_theta": 10000.0, **parameters, "original_max_position_embeddings": 100}
    alone = PosEncModel(tiny_config("rope", rope_parameters=parameters)).position
    places = torch.arange(300)
    assert torch.equal(model.position.cos_sin(places), alone.cos_sin(places))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "yarrn"}, "rope_type='yarrn' is unknown. Choose one of default, linear, dynamic, yarn"),
        ({"factor": 2.0}, "no 'factor' for rope_type='default'.*takes rope_type, rope_theta, partial_rotary_factor"),
        ({**YARN, "beta_fats": 3}, "no 'beta_fats' for rope_type='yarn'.* takes .*beta_fast"),
        ({"rope_type": "linear"}, "lacks 'factor' for rope_type='linear', which needs factor"),
        ({**LONG, "long_factor": None}, "lacks 'long_factor' for rope_type='longrope'"),
        ({"rope_type": "llama3", "factor": 8.0}, "lacks 'high_freq_factor'.*needs factor, low_freq_factor, high_freq"),
        ({"rope_type": "linear", "factor": 0.5}, "factor=0.5 is out of range. It must be .* of at least 1"),
        ({**YARN, "attention_factor": -1.0}, r"attention_factor=-1\.0 is out of range"),
        ({**YARN, "beta_fast": 1.0, "beta_slow": 2.0}, r"beta_slow=2\.0 must be less than beta_fast=1\.0"),
        ({**YARN, "mscale": 1.0}, "mscale and mscale_all_dim act together. Give both or neither"),
        ({"local_rope_theta": 9.0}, "local_rope_theta and global_attn_every_n_layers act together. Give both or"),
        ({"local_rope_theta": 9.0, "global_attn_every_n_layers": 1}, "global_attn_every_n_layers=1 is out of range"),
        ({**YARN, "truncate": 1}, "truncate=1 is neither True nor False"),
        ({**YARN, "rope_theta": 1.0}, r"rope_theta=1\.0 is out of range. It must be a positive number above 1"),
        ({**YARN, "original_max_position_embeddings": 0}, "original_max_position_embeddings=0 is out of range"),
        ({**YARN, "original_max_position_embeddings": 9.5}, r"original_max_position_embeddings=9\.5 is out of range"),
        ({**LONG, "short_factor": 2.0}, r"short_factor=2\.0 is no list of positive numbers, one per pair"),
        ({**LONG, "short_factor": [1.0] * 3}, "short_factor has 3 numbers.*each of the 4 pairs of head_dim=8"),
        ({**LONG, "long_factor": [1.0, 1.0, 0.0, 1.0]}, r"long_factor=.*0\.0, 1\.0\] is no list of positive"),
        ({**LONG, "original_max_position_embeddings": 1}, "original_max_position_embeddings=1 is out of range"),
        ({**LLAMA3, "high_freq_factor": 1.0}, r"low_freq_factor=1\.0 must be less than high_freq_factor=1\.0"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.1}, "0 of head_dim=8 entries would be turned"),
        (
            {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.25},
            "2 of head_dim=8 .* no even number from 4",
        ),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor=1\.5 is out of range. It must be .* up to 1"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        PosEncModel(tiny_config("rope", rope_parameters=parameters))
    with pytest.raises(ValueError, match=message):
        RotaryPosition(head_dim=8, max_positions=64, rope_parameters=parameters)


def test_angles_follow_the_largest_position_of_each_row():
    parameters = scalings(4, 16)["dynamic"]
    scheme = RotaryPosition(head_dim=8, rope_parameters=parameters)
    q, k = torch.randn(2, 2, 3, 5, 8).unbind(0)
    positions = torch.stack((torch.arange(5), torch.arange(30, 35)))
    both = [apply_rotary(x, positions, scheme=scheme) for x in (q, k)]
    for row in range(2):
        alone = [apply_rotary(x[row], positions[row], scheme=scheme) for x in (q, k)]
        for a, b in zip(both, alone, strict=True):
            torch.testing.assert_close(a[row], b)


# 0.69 of 44 entries are 30, and 30 / 44 of 44 are 29.999...
@pytest.mark.parametrize("share", [1.0, 0.69])
@pytest.mark.parametrize("kind", KINDS)
def test_local_layers_turn_the_same_entries_by_a_theta_of_their_own_unscaled(kind, share):
    whole = scalings(22 if share == 1.0 else 15, 16)[kind]
    share = whole.setdefault("partial_rotary_factor", share)
    local = {"local_rope_theta": 50.0, "global_attn_every_n_layers": 3}
    both = RotaryPosition(head_dim=44, rope_parameters={**whole, **local})
    plain = {"rope_theta": 50.0, "partial_rotary_factor": 1.0 if kind == "proportional" else share}
    alone = [RotaryPosition(head_dim=44, rope_parameters=each) for each in (whole, plain, plain, whole)]
    q, k = torch.randn(2, 1, 40, 2, 44).unbind(0)
    row = Tokens.from_positions(torch.arange(40)[None])
    for layer, scheme in enumerate(alone):
        got, expected = (each.rotate(q, k, each.rotary(row), layer) for each in (both, scheme))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_off_by_its_last_rounding_alone(kind, interleaved, dtype):
    scheme = RotaryPosition(head_dim=8, rope_parameters=scalings(4, 64)[kind], interleaved=interleaved)
    q = torch.randn(50, 8).to(dtype)
    exact = apply_rotary(q.float(), start=4000, scheme=scheme)
    turned = apply_rotary(q, start=4000, scheme=scheme)
    torch.testing.assert_close(turned.float(), exact, rtol=torch.finfo(dtype).eps / 2 * 1.01, atol=1e-7)
