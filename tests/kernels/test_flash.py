"""FlashAttention takes the slopes of symmetric ALiBi and refuses other biases, shown by a stand-in for flash_attn."""

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hf_posenc import SCHEMES, AlibiPosition, kernels
from tests.support.common import encoder, padded, tokens
from tests.support.references import flash_attention

IDS, MASK = padded([tokens(n, seed=n) for n in (9, 1, 4, 6)])
FIXED, TRAINED = ({"directional": False, "learned": learned} for learned in (False, True))
BY_LAYER = {**TRAINED, "per_layer": True}
ARRANGEMENTS = {
    "right-padded": {"input_ids": IDS, "attention_mask": MASK},
    "left-padded": {"input_ids": IDS.flip(1), "attention_mask": MASK.flip(1)},
    "full": {"input_ids": tokens(3, 8)},
    "packed": {"input_ids": IDS[:2, :8], "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2, 2]])},
    "borders": {"input_ids": IDS[:1], "cu_seq_lens_q": torch.tensor([0, 2, 9], dtype=torch.int32)},
}


@pytest.fixture
def slopes(monkeypatch):
    """The slopes that the stand-in was called with."""
    seen = []

    def of_sequences(q, k, v, **options):
        seen.append(options["alibi_slopes"])
        return torch.stack([flash_attention(*rows, **options) for rows in zip(q, k, v, strict=True)])

    def of_tokens(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options):
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        lengths = cu_seqlens_q.diff().tolist()
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert max(lengths) == max_seqlen_q == max_seqlen_k
        seen.append(options["alibi_slopes"])
        parts = zip(*(t.split(lengths) for t in (q, k, v)), strict=True)
        return torch.cat([flash_attention(*rows, **options) for rows in parts])

    module = ModuleType("flash_attn")
    module.flash_attn_func, module.flash_attn_varlen_func = of_sequences, of_tokens
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    # Transformers' asks for a GPU.
    monkeypatch.setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", lambda self, name, *_, **__: name)
    return seen


def models(scheme="alibi", kwargs=FIXED, **fields):
    """The same encoder on FlashAttention and on sdpa."""
    return [
        encoder(scheme, position_embedding_kwargs=kwargs, attn_implementation=name, **fields)
        for name in ("flash_attention_2", "sdpa")
    ]


def states(model, **inputs):
    return model(**inputs).last_hidden_state


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize(
    ("scheme", "kwargs"),
    [
        *[("alibi", FIXED), ("alibi", TRAINED), ("alibi", BY_LAYER)],
        *[("sinusoidal+rope+alibi", {"alibi": BY_LAYER}), ("alibi+pope", {"alibi": FIXED})],
    ],
)
def test_slopes_give_the_numbers_of_the_bias(slopes, scheme, kwargs, arrangement):
    flash, sdpa = models(scheme, kwargs, num_hidden_layers=3)
    with torch.no_grad():
        got, expected = (states(model, **ARRANGEMENTS[arrangement]) for model in (flash, sdpa))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert len(slopes) == 3
    assert torch.equal(*slopes[:2]) == ("per_layer" not in str(kwargs))


@pytest.mark.parametrize("arrangement", ["right-padded", "full"])
@pytest.mark.parametrize("cast", ["weights", "autocast"])
def test_slopes_stay_float32_in_half_precision(slopes, cast, arrangement):
    flash, sdpa = models(kwargs=BY_LAYER)
    inputs = ARRANGEMENTS[arrangement]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast == "autocast"):
        expected = states(sdpa, **inputs)
        got = states(flash if cast == "autocast" else flash.bfloat16(), **inputs).float()
    assert (got - expected).abs().mean() < 0.008
    assert len(slopes) == 2  # which the stand-in checks


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("arrangement", ["left-padded", "packed", "full"])
def test_queries_keys_and_values_get_the_gradients_of_sdpa(slopes, arrangement, checkpointed):
    gradients = []
    for model in models():
        if checkpointed:
            model.gradient_checkpointing_enable()
        states(model.train(), **ARRANGEMENTS[arrangement]).square().sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    assert {name.split(".")[-2] for name in gradients[0]} >= {"query", "key", "value"}
    torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-4)
    assert len(slopes) == 2 * (1 + checkpointed)


@pytest.mark.parametrize(
    ("fields", "inputs"),
    [
        ({}, {"position_ids": torch.arange(9) * 3}),
        ({}, {"position_ids": torch.arange(9).flip(0)}),
        ({}, {"output_attentions": True}),
        ({"position_augmentation": "random"}, {}),
    ],
)
def test_what_slopes_of_places_cant_tell_runs_on_padded_rows(slopes, fields, inputs):
    results = []
    for model in models(**fields):
        torch.manual_seed(0)
        model.train("position_augmentation" in fields)
        results.append(states(model, input_ids=IDS, attention_mask=MASK, **inputs))
    assert slopes == []
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_dropout_is_the_kernels(slopes, monkeypatch):
    flash, _ = models(attention_probs_dropout_prob=0.25)
    dropped = []
    keep = lambda q, k, v, *cuts, dropout_p, **options: dropped.append(dropout_p) or q  # noqa: E731
    monkeypatch.setattr(sys.modules["flash_attn"], "flash_attn_varlen_func", keep)
    for mode in (True, False):
        states(flash.train(mode), **ARRANGEMENTS["packed"])
    assert dropped == [0.25] * 2 + [0.0] * 2


@pytest.mark.parametrize("kwargs", [FIXED, BY_LAYER])
def test_a_layer_that_is_compiled_alone_is_one_graph(slopes, monkeypatch, kwargs):
    add = lambda q, k, v, *cuts, alibi_slopes, **options: q + k + v * alibi_slopes[:, None]  # noqa: E731
    monkeypatch.setattr(sys.modules["flash_attn"], "flash_attn_varlen_func", add)
    flash, _ = models(kwargs=kwargs)
    torch.compiler.reset()  # what other tests compiled counts towards the limit of graphs
    with torch.no_grad():
        expected = states(flash, **ARRANGEMENTS["packed"])
        for layer in flash.layers:
            layer.compile(backend="eager", fullgraph=True, dynamic=True)
        torch.testing.assert_close(states(flash, **ARRANGEMENTS["packed"]), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("arrangement", ["left-padded", "packed", "full"])
def test_the_kernel_itself_gives_the_gradients_of_float32(arrangement):
    """Tolerance: a mean error of .01 of the largest entry, in bfloat16."""
    pytest.importorskip("flash_attn")
    gradients = []
    for name, device, dtype in (("flash_attention_2", "cuda", torch.bfloat16), ("sdpa", "cpu", torch.float32)):
        model = encoder("alibi", position_embedding_kwargs=FIXED).to(device, dtype)
        model.set_attn_implementation(name)
        inputs = {key: value.to(device) for key, value in ARRANGEMENTS[arrangement].items()}
        states(model, **inputs).square().mean().backward()
        gradients.append(model.layers[0].attention.query.weight.grad.float().cpu())
    assert (gradients[0] - gradients[1]).abs().mean() < 0.01 * gradients[1].abs().max()


# ---- refusals


class Clipped(AlibiPosition):
    """Another bias than its base's."""

    def of_distance(self, distance, layer):
        return super().of_distance(distance.clamp(-2, 2), layer)


NO_BIAS = "takes no bias, and position_embedding_type="
ONE_SLOPE = "takes one ALiBi slope for both sides. Use position_embedding_kwargs={'directional': False, 'learned': Fal"


@pytest.mark.parametrize(
    ("scheme", "kwargs", "message"),
    [
        *[("alibi", None, ONE_SLOPE), ("rope+alibi", None, ONE_SLOPE)],
        *[("clipped", FIXED, NO_BIAS), ("alibi+t5", {"alibi": FIXED}, NO_BIAS)],
        *[("alibi+window", {"alibi": FIXED}, NO_BIAS), ("kerple", None, NO_BIAS)],
    ],
)
def test_another_bias_is_refused(slopes, monkeypatch, scheme, kwargs, message):
    monkeypatch.setitem(SCHEMES, "clipped", Clipped)
    late = encoder(scheme, position_embedding_kwargs=kwargs)
    late.config._attn_implementation = "flash_attention_2"
    ways = (lambda: models(scheme, kwargs), lambda: states(late, input_ids=IDS, attention_mask=MASK))
    for way in ways:
        with pytest.raises(ValueError, match=f"^attn_implementation='flash_attention_2' {re.escape(message)}.*'sdpa'"):
            way()
    assert slopes == []


@pytest.mark.parametrize("name", ["flash_attention_3", "flash_attention_4", "kernels-community/flash-attn2"])
def test_another_flash_attention_is_refused(slopes, name):
    flash, _ = models()
    flash.config._attn_implementation = name
    with pytest.raises(ValueError, match=f"'{name}' takes no bias"):
        states(flash, input_ids=IDS)


@pytest.mark.parametrize("lacking", ["package", "functions", "kernels", "hf_posenc"])
def test_without_the_package_the_functions_or_our_kernels_it_is_refused(slopes, monkeypatch, tmp_path, lacking):
    flash, _ = models()
    if lacking == "hf_posenc":  # as far as a checkpoint's own code can tell
        flash.save_pretrained(tmp_path)
        flash = get_class_from_dynamic_module("modeling_posenc.PosEncModel", str(tmp_path)).from_pretrained(tmp_path)
        flash.config._attn_implementation = "flash_attention_2"
    elif lacking == "kernels":
        monkeypatch.setattr(kernels.switch, "_enabled", False)
    else:  # FlashAttention 4 is a package of the same name
        monkeypatch.setitem(sys.modules, "flash_attn", None if lacking == "package" else SimpleNamespace())
    with pytest.raises(ValueError, match="'flash_attention_2' takes no bias"):
        states(flash, input_ids=IDS)


@pytest.mark.parametrize("kwargs", [TRAINED, BY_LAYER])
def test_learned_slopes_are_refused_where_they_need_a_gradient(slopes, kwargs):
    flash, sdpa = models(kwargs=kwargs)
    message = "'flash_attention_2' gives ALiBi's slopes no gradient. To train, use .*'learned': False.*'sdpa'.*no_grad"
    with pytest.raises(ValueError, match=message):
        states(flash, **ARRANGEMENTS["full"])
    flash.position.requires_grad_(False)
    got = states(flash, **ARRANGEMENTS["full"])
    torch.testing.assert_close(got, states(sdpa, **ARRANGEMENTS["full"]), atol=1e-5, rtol=1e-5)
    assert len(slopes) == 2
