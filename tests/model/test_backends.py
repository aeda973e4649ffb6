"""Every attention backend gives the same numbers, or refuses: none drops a bias without a word."""

import logging
import re

import pytest
import torch
from common import BUILTIN, BY_HOOK, COMBINED, encoder, padded, tiny_config, tokens
from transformers import AutoModelForMaskedLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc import SCHEMES, PosEncModel, PositionScheme, make_scheme
from hf_posenc.model import attention
from hf_posenc.model.attention import eager_attention_forward
from hf_posenc.model.unpadding import Rows, Runs, TokenLayout

EVERY = [*BUILTIN, *COMBINED]
MADE = {name: make_scheme(tiny_config(name)) for name in EVERY}
BIASED = [name for name in EVERY if MADE[name].uses("bias") or MADE[name].uses("layer_bias")]
IDS, MASK = padded([tokens(n, seed=n) for n in (9, 1, 4, 6)])
BATCHES = {"padded": (IDS, MASK), "full": (tokens(3, 8), None)}


def fake_flash(module, q, k, v, mask, dropout, scaling, is_causal, cu_seq_lens_q=None, max_length_q=None, **more):
    """What transformers' FlashAttention functions take and give, written out."""
    assert mask is None
    assert not is_causal
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    shape = q.shape
    if cu_seq_lens_q is None:
        lengths = [shape[1]] * shape[0]
    else:
        assert torch.equal(more["cu_seq_lens_k"], cu_seq_lens_q)
        assert cu_seq_lens_q.dtype == torch.int32
        lengths = cu_seq_lens_q.diff().tolist()
        assert max(lengths) == max_length_q == more["max_length_k"]
    outs = []
    for a, b, c in zip(*(t.flatten(0, 1).split(lengths) for t in (q, k, v)), strict=True):
        weights = (torch.einsum("ihd,jhd->hij", a, b) * scaling).softmax(-1)
        outs.append(torch.einsum("hij,jhd->ihd", weights, c))
    return torch.cat(outs).view(shape), None


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("scheme", [*(name for name in BY_HOOK if name not in BIASED), "pope"])
def test_flash_attention_gets_the_borders_of_the_sequences(scheme, batch, monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "owner/flash-kernel", fake_flash)
    ids, mask = BATCHES[batch]
    for unpad in (True, False):
        model = encoder(scheme, unpad_inputs=unpad)
        expected = model(ids, attention_mask=mask).last_hidden_state
        model.config._attn_implementation = "owner/flash-kernel"
        torch.testing.assert_close(model(ids, attention_mask=mask).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
        weights = model(ids, attention_mask=mask, output_attentions=True).attentions
        assert weights[0].shape == (*ids.shape[:1], 4, ids.shape[1], ids.shape[1])


TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "autocast": 0.008, "bfloat16": 0.008}
"""Of the largest entry's error in float64 and float32, of the mean error in bfloat16: there it is .002 to .006, and a
bias that was lost would be .02 or more, but for `fire` (.006), whose loss the others show."""
ARRANGEMENTS = {
    "right-padded": {"attention_mask": MASK},
    "left-padded": {"attention_mask": MASK.flip(1)},
    "full": {},
    "packed": {"position_ids": torch.cat([torch.arange(4), torch.arange(5)]).repeat(4, 1)},
}


# Of every scheme `check_scheme` compares eager attention and sdpa; and bfloat16 with float32.
@pytest.mark.parametrize(
    ("dtype", "arrangement"),
    [(dtype, name) for dtype in TOLERANCES for name in ARRANGEMENTS if name == "left-padded" or dtype == "float32"],
)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("scheme", [*BY_HOOK, "pope"])
def test_every_hook_backend_dtype_and_padding_gives_the_padded_eager_numbers_of_float64(
    scheme, backend, dtype, arrangement
):
    inputs = ARRANGEMENTS[arrangement]
    ids = IDS.flip(1) if arrangement == "left-padded" else IDS
    number = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(dtype, torch.float32)
    with torch.no_grad():
        written_out = encoder(scheme, attn_implementation="eager", unpad_inputs=False).double()
        expected = written_out(ids, **inputs).last_hidden_state
        model = encoder(scheme, attn_implementation=backend).to(number)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
            got = model(ids, **inputs).last_hidden_state.double()
    error = (got - expected).abs()
    assert (error.mean() if dtype in ("autocast", "bfloat16") else error.max()) < TOLERANCES[dtype]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("backend", ["eager", "sdpa", "owner/flash-kernel"])
def test_a_gated_body_gives_the_padded_eager_numbers_of_float64_by_every_backend(backend, dtype, bias, monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "owner/flash-kernel", fake_flash)
    fields = {"mlp_gated": True, "attention_bias": bias, "mlp_bias": bias, "hidden_act": "silu"}
    number = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(dtype, torch.float32)
    for inputs in ARRANGEMENTS.values():
        with torch.no_grad():
            written_out = encoder("rope", attn_implementation="eager", unpad_inputs=False, **fields).double()
            expected = written_out(IDS, **inputs).last_hidden_state
            model = encoder("rope", **fields).to(number)
            model.config._attn_implementation = backend
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
                got = model(IDS, **inputs).last_hidden_state.double()
        error = (got - expected).abs()
        allowed = 2 * TOLERANCES[dtype]  # the gate multiplies two rounded numbers
        assert (error.mean() if dtype in ("autocast", "bfloat16") else error.max()) < allowed


@pytest.mark.parametrize("name", ["my_flash_thing", "flash_attention_of_mine"])
def test_a_registered_attention_with_flash_in_its_name_gets_a_mask(name, monkeypatch):
    seen = []

    def flashy(module, q, k, v, mask, **how):
        seen.append(mask)
        return attention.eager_attention_forward(module, q, k, v, mask, **how)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, name, flashy)
    model = encoder("rope", unpad_inputs=False)
    expected = model(IDS, attention_mask=MASK).last_hidden_state
    model.config._attn_implementation = name
    torch.testing.assert_close(model(IDS, attention_mask=MASK).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    assert seen[0].dtype == torch.bool
    with pytest.raises(ValueError, match=f"'{name}' takes no bias"):
        attention.check_bias(name, MADE["alibi"])
    for name in ("flash_attention_2", "flash_attention_3", "flash_attention_4", "kernels-community/flash-attn2"):
        assert attention.backend_of(name) is attention.BACKENDS["flash"]
    for name in ("varlen", "flash", "registered"):  # rows of the table that no name asks for
        assert attention.backend_of(name) is attention.BACKENDS["registered"]


@pytest.mark.parametrize("scheme", BIASED)
def test_a_backend_that_would_drop_a_bias_is_refused(scheme):
    message = rf"'flash_attention_2' takes no bias, and position_embedding_type='{re.escape(scheme)}' is a bias"
    with pytest.raises(ValueError, match=message):
        attention.check_bias("flash_attention_2", MADE[scheme])
    model = encoder(scheme)
    model.config._attn_implementation = "flash_attention_2"  # after the model has been built
    with pytest.raises(ValueError, match=message):
        model(IDS, attention_mask=MASK)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flex_attention", "'flex_attention' isn't supported: use 'sdpa'"),
        ("vllm", "'vllm' isn't supported: vLLM ignores masks.*`hf-posenc export --to native`"),
    ],
)
def test_a_backend_that_is_refused_is_refused_with_the_reason_however_it_is_asked_for(
    name, message, tmp_path, monkeypatch
):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "vllm", eager_attention_forward)  # as vLLM does
    model = encoder("rope")
    model.save_pretrained(tmp_path)
    ways = (
        lambda: PosEncModel.from_pretrained(tmp_path, attn_implementation=name),
        lambda: AutoModelForMaskedLM.from_config(tiny_config("rope"), attn_implementation=name),
        lambda: PosEncModel(tiny_config("rope", attn_implementation=name)),
        lambda: model.set_attn_implementation(name),
    )
    for way in ways:
        with pytest.raises(ValueError, match=message):
            way()
    assert model.config._attn_implementation == "sdpa"
    model.config._attn_implementation = name
    with pytest.raises(ValueError, match=message):
        model(IDS, attention_mask=MASK)


def test_attention_moves_to_another_device_with_its_batch():
    batch = TokenLayout.from_batch(IDS, MASK)
    x = torch.zeros(*batch.tokens.positions.shape, 32)
    config = tiny_config("rope")
    config._attn_implementation = "sdpa"
    attend = attention.choose_attention(config, MADE["rope"], batch, x, False, False)
    assert isinstance(attend.runs, Runs)
    moved = attend.to("meta")
    assert (moved.layout.index.device.type, attend.layout.index.device.type) == ("meta", "cpu")
    for runs, device in ((attend.runs, "cpu"), (moved.runs, "meta")):  # layers may lie on several devices
        held = torch.utils._pytree.tree_leaves(vars(runs))
        assert {value.device.type for value in held if isinstance(value, torch.Tensor)} == {device}
    assert {mask.device.type for mask in moved.masks if mask is not None} == {"meta"}


def assert_alike(scheme, other, backend):
    """Two schemes without weights give the same hidden states."""
    with torch.no_grad():
        models = (encoder(name, attn_implementation=backend) for name in (scheme, other))
        got, expected = (model(IDS, attention_mask=MASK).last_hidden_state for model in models)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


class Silent(PositionScheme):
    """A bias that adds nothing."""

    name = "silent"

    def bias(self, tokens):
        return None

    def layer_bias(self, q, k, tokens, layer):
        return None


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_bias_may_be_none(backend, monkeypatch):
    monkeypatch.setitem(SCHEMES, "silent", Silent)
    assert_alike("silent", "none", backend)


class Half(PositionScheme):
    """Only the first half of queries and keys meets."""

    name = "half"

    def rotate(self, q, k, state, layer):
        return q[..., : q.shape[-1] // 2], k[..., : k.shape[-1] // 2]


class Masked(PositionScheme):
    """The same, at full width."""

    name = "masked"

    def rotate(self, q, k, state, layer):
        return q * (torch.arange(q.shape[-1]) < q.shape[-1] // 2), k


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_rotation_may_narrow_queries_and_keys(backend, monkeypatch):
    for scheme in (Half, Masked):
        monkeypatch.setitem(SCHEMES, scheme.name, scheme)
    assert_alike("half", "masked", backend)


@pytest.mark.parametrize("scheme", ["none", "rope"])
def test_a_registered_attention_gets_a_boolean_mask_and_a_line_says_what_it_must_do(scheme, monkeypatch):
    masks, lines = [], []

    def registered(module, query, key, value, attention_mask, **options):
        masks.append(attention_mask)
        return eager_attention_forward(module, query, key, value, attention_mask, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "registered_too", registered)
    monkeypatch.setattr(attention.logger, "warning", lines.append)
    attention.logger.warning_once.cache_clear()
    model = encoder(scheme, attn_implementation="registered_too")
    model(IDS[:1, -9:])
    assert set(masks) == {None}
    assert lines == []
    got = model(IDS, attention_mask=MASK).last_hidden_state
    assert masks[-1].dtype == torch.bool
    assert "'registered_too' must heed attention_mask" in lines[0]
    torch.testing.assert_close(got, encoder(scheme)(IDS, attention_mask=MASK).last_hidden_state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", BIASED)
def test_a_registered_attention_is_refused_a_bias(scheme, monkeypatch):
    name = "registered_too"
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, eager_attention_forward)
    model = encoder(scheme)
    model.set_attn_implementation(name)
    refused = f"'{name}' takes no bias, and position_embedding_type='{re.escape(scheme)}' is a bias"
    with pytest.raises(ValueError, match=refused):
        model(IDS, attention_mask=MASK)
    with pytest.raises(ValueError, match=refused):
        encoder(scheme, attn_implementation=name)


def test_varlen_is_chosen_on_a_gpu_for_schemes_without_a_bias_alone(monkeypatch):
    batch = TokenLayout.from_batch(IDS, MASK)

    def chosen(backend, scheme):
        config, x = tiny_config(scheme), torch.zeros(*batch.tokens.positions.shape, 32)
        config._attn_implementation = backend
        return attention.choose_attention(config, MADE[scheme], batch, x, has_dropout=False, wants_weights=False)

    assert isinstance(chosen("sdpa", "rope").runs, Runs)
    assert isinstance(chosen("eager", "rope").runs, Rows)
    with monkeypatch.context() as patch:
        fits = attention._runs_varlen
        patch.setattr(attention, "_runs_varlen", lambda scheme, batch, x, has_dropout: not attention._is_biased(scheme))
        assert chosen("sdpa", "rope").backend is attention.BACKENDS["varlen"]
        assert chosen("sdpa", "t5").backend is attention.BACKENDS["sdpa"]
        assert chosen("eager", "rope").backend is attention.BACKENDS["eager"]
    assert not fits(MADE["rope"], batch, torch.zeros(1, 20, 32, dtype=torch.bfloat16), False)  # not on CUDA
    assert batch.cu_seqlens.tolist() == [0, 9, 10, 14, 20]


def test_one_log_line_says_how_attention_runs(monkeypatch):
    lines = []
    monkeypatch.setattr(attention.logger, "info", lines.append)
    attention.logger.info_once.cache_clear()
    model = encoder("rope")
    for _ in range(2):
        model(IDS, attention_mask=MASK)
    assert lines == ["Attention: attn_implementation='sdpa' on cpu, runs of like lengths."]
    assert logging.getLogger("hf_posenc")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("backend", ["eager", "sdpa", "flash_attention_2"])
@pytest.mark.parametrize("scheme", EVERY)
def test_every_backend_gives_the_float32_numbers_on_a_gpu(scheme, backend, batch, dtype):
    """Tolerance: 1e-4 in float32; in bfloat16 a mean error of 0.01: a lost bias makes .02 and more."""
    from transformers.utils import is_flash_attn_2_available

    if backend == "flash_attention_2" and (scheme in BIASED or dtype == torch.float32):
        pytest.skip("FlashAttention takes neither a bias nor float32")
    if backend == "flash_attention_2" and not is_flash_attn_2_available():
        pytest.skip("flash_attn isn't installed")
    ids, mask = BATCHES[batch]
    expected = encoder(scheme)(ids, attention_mask=mask).last_hidden_state
    model = encoder(scheme).to("cuda", dtype)
    model.set_attn_implementation(backend)
    mask = None if mask is None else mask.cuda()
    with torch.no_grad():
        got = model(ids.cuda(), attention_mask=mask).last_hidden_state.float().cpu()
    if dtype == torch.float32:
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    else:
        assert (got - expected).abs().mean() < 0.01


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scheme", EVERY)
def test_training_on_a_gpu_gives_the_gradients_of_a_cpu(scheme):
    gradients = []
    for device in ("cpu", "cuda"):
        model = encoder(scheme).to(device)
        model(IDS.to(device), attention_mask=MASK.to(device)).last_hidden_state.square().sum().backward()
        gradients.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-2, rtol=1e-2)
