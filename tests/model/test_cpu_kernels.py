"""The CPU kernels that the encoder calls directly, against plain formulas in values and gradients."""

import pytest
import torch
from common import encoder, padded, perturb, tiny_config, tokens
from torch.nn import functional

from hf_posenc import PosEncForSequenceClassification
from hf_posenc.model import cpu_kernels
from hf_posenc.model.position_math import gather_by_distance, per_distinct_distance, relative_positions


def written_out(q, k, v, bias, lengths, scale):
    """One softmax per sequence, (T, H, d) -> (T, H, d)."""
    outs = []
    for place, (a, b, c) in enumerate(zip(*(t.split(lengths) for t in (q, k, v)), strict=True)):
        logits = torch.einsum("ihd,jhd->hij", a, b) * scale
        if bias is not None:
            length = len(a)
            logits = logits + bias[place if len(bias) > 1 else 0, :, :length, :length]
        outs.append(torch.einsum("hij,jhd->ihd", logits.softmax(-1), c))
    return torch.cat(outs)


@pytest.mark.parametrize("shape", [None, (1, 1), (1, 3), (4, 1), (4, 3)])
@pytest.mark.parametrize("lengths", [[7, 1, 12, 3], [260, 2, 300, 256], [5, 5, 5, 2]])
def test_attention_by_sequence_equals_softmax_written_out_in_values_and_all_gradients(lengths, shape):
    tokens_in_all, longest = sum(lengths), max(lengths)
    q, k, v = (torch.randn(tokens_in_all, 3, 8, requires_grad=True) for _ in range(3))
    bias = None if shape is None else torch.randn(*shape, longest, longest, requires_grad=True)
    inputs = [t for t in (q, k, v, bias) if t is not None]
    target = torch.randn(tokens_in_all, 3, 8)
    got = cpu_kernels.attend_by_sequence(q, k, v, bias, lengths, 0.3)
    expected = written_out(q.double(), k.double(), v.double(), None if bias is None else bias.double(), lengths, 0.3)
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)
    wanted = torch.autograd.grad((expected * target).sum(), inputs)
    for mine, theirs in zip(torch.autograd.grad((got * target).sum(), inputs), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


def test_a_bias_used_by_several_layers_gets_the_sum_of_their_gradients():
    q = torch.randn(9, 2, 4)
    bias = torch.randn(1, 2, 5, 5, requires_grad=True)
    once = torch.autograd.grad(cpu_kernels.attend_by_sequence(q, q, q, bias, [4, 5], 1.0).sum(), bias)[0]
    twice = sum(cpu_kernels.attend_by_sequence(q, q, q * n, bias, [4, 5], 1.0).sum() for n in (1, 2))
    torch.testing.assert_close(torch.autograd.grad(twice, bias)[0], 3 * once, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("shape", "lengths"), [(None, [3, 2]), ((2, 1), [3, 2]), ((2, 1), [3, 3])])
def test_attention_by_sequence_can_be_differentiated_twice(shape, lengths):
    q, k, v = (torch.randn(sum(lengths), 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = [] if shape is None else [torch.randn(*shape, 3, 3, dtype=torch.float64, requires_grad=True)]

    def attend(q, k, v, bias=None):
        return cpu_kernels.attend_by_sequence(q, k, v, bias, lengths, 0.3)

    assert torch.autograd.gradgradcheck(attend, (q, k, v, *bias))
    k.requires_grad_(False)  # one that needs no gradient leaves the others in their places
    assert torch.autograd.gradgradcheck(attend, (q, k, v, *bias), fast_mode=True)


@pytest.mark.parametrize("shape", [(2, 5, 5), (1, 1, 1, 5), (5, 1)])
def test_a_bias_that_broadcasts_gives_what_its_expanded_self_gives(shape):
    q = torch.randn(9, 2, 4)
    bias = torch.randn(shape, requires_grad=True)
    got = cpu_kernels.attend_by_sequence(q, q, q, bias, [4, 5], 1.0)
    expected = written_out(q, q, q, bias.expand(1, 2, 5, 5), [4, 5], 1.0)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    mine, theirs = (torch.autograd.grad(t.square().sum(), bias)[0] for t in (got, expected))
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_neighbours_of_equal_length_share_a_call_until_their_logits_fill_a_block(monkeypatch):
    monkeypatch.setattr(cpu_kernels, "BLOCK", 3 * 4**2)
    assert cpu_kernels._runs([4, 4, 4, 4, 2, 4, 9, 9]) == [(3, 4), (1, 4), (1, 2), (1, 4), (1, 9), (1, 9)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_attention_by_sequence_takes_other_dtypes(dtype):
    lengths = [7, 3]
    q, k, v = (torch.randn(10, 2, 8) for _ in range(3))
    bias = torch.randn(1, 2, 7, 7)
    expected = written_out(q, k, v, bias, lengths, 0.3)
    leaves = [t.to(dtype).requires_grad_() for t in (q, k, v)] + [bias.requires_grad_()]
    got = cpu_kernels.attend_by_sequence(*leaves, lengths, 0.3)
    assert got.dtype == dtype
    atol = 1e-5 if dtype == torch.float64 else 0.05
    torch.testing.assert_close(got.float(), expected, atol=atol, rtol=atol)
    with torch.no_grad():  # the kernel computes in half precision itself
        torch.testing.assert_close(cpu_kernels.attend_by_sequence(*leaves, lengths, 0.3), got, atol=atol, rtol=atol)
    got.float().sum().backward()
    assert [leaf.grad.dtype for leaf in leaves] == [dtype] * 3 + [torch.float32]


@pytest.mark.parametrize("shape", [(5, 16), (2, 5, 16), (1, 16)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_equals_pytorchs_in_values_and_gradients_to_the_second_order(shape, with_bias, monkeypatch):
    if not cpu_kernels.onednn_is_faster():
        if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            pytest.skip("PyTorch was built without oneDNN")
        monkeypatch.setattr(cpu_kernels, "onednn_is_faster", lambda: True)
    layer = torch.nn.Linear(16, 7, bias=with_bias)
    x = torch.randn(shape, requires_grad=True)
    inputs = [x, *layer.parameters()]
    for given in (x, x[..., ::2].repeat_interleave(2, -1), x.flip(0).expand(3, *shape)[1]):
        got = cpu_kernels.apply_linear(layer, given)
        expected = functional.linear(given, layer.weight, layer.bias)
        assert "OneDNN" in type(got.grad_fn).__name__
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
        for order in (1, 2):
            first = torch.autograd.grad(got.square().sum(), inputs, create_graph=order == 2)
            wanted = torch.autograd.grad(expected.square().sum(), inputs, create_graph=order == 2)
            if order == 2:
                first, wanted = (
                    torch.autograd.grad(sum(g.square().sum() for g in gs), inputs) for gs in (first, wanted)
                )
            for a, b in zip(first, wanted, strict=True):
                torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)
            got, expected = cpu_kernels.apply_linear(layer, given), functional.linear(given, layer.weight, layer.bias)
        with torch.no_grad():
            torch.testing.assert_close(cpu_kernels.apply_linear(layer, given), expected, atol=1e-5, rtol=1e-5)


def test_linear_is_pytorchs_own_where_somebody_watches_or_transforms(monkeypatch):
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr(cpu_kernels, "onednn_is_faster", lambda: True)
    layer = torch.nn.Linear(16, 7)
    x = torch.randn(5, 16)
    with FlopCounterMode(display=False) as counter:
        cpu_kernels.apply_linear(layer, x)
    assert counter.get_total_flops() == 2 * 5 * 16 * 7
    torch.testing.assert_close(torch.func.vmap(lambda row: cpu_kernels.apply_linear(layer, row))(x), layer(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cpu_kernels.apply_linear(layer, x).dtype == torch.bfloat16
    seen = []
    handle = layer.register_forward_hook(lambda *_: seen.append("hook"))
    cpu_kernels.apply_linear(layer, x)
    handle.remove()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global"))
    cpu_kernels.apply_linear(layer, x)
    handle.remove()
    layer.forward = lambda x: seen.append("replaced")
    cpu_kernels.apply_linear(layer, x)
    del layer.forward
    adapted = type("Adapted", (torch.nn.Linear,), {"forward": lambda *_: seen.append("subclass")})(16, 7)
    cpu_kernels.apply_linear(adapted, x)
    assert seen == ["hook", "global", "replaced", "subclass"]
    layer.double()
    assert cpu_kernels.apply_linear(layer, x.double()).dtype == torch.float64
    assert cpu_kernels.apply_linear(layer, x[:0].double()).shape == (0, 7)


@pytest.mark.parametrize("positions", [torch.arange(6)[None], torch.arange(3, 9)[None], torch.zeros(1, 1).long()])
def test_consecutive_positions_gather_by_distance_like_any_others(positions):
    reach = int(positions.max() - positions.min())
    table = torch.randn(2 * reach + 1, 3, requires_grad=True)
    expected = table[relative_positions(positions) + reach].permute(0, 3, 1, 2)
    got = per_distinct_distance(lambda d: table[d + reach], positions)
    torch.testing.assert_close(got, expected)
    target = torch.randn(got.shape)
    mine, theirs = (torch.autograd.grad((t * target).sum(), table)[0] for t in (got, expected))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)

    logits = torch.randn(2, 3, positions.shape[1], 2 * reach + 1, requires_grad=True)
    index = (relative_positions(positions) + reach)[:, None].expand(2, 3, -1, -1)
    expected, got = logits.gather(-1, index), gather_by_distance(logits, positions, reach)
    torch.testing.assert_close(got, expected)
    target = torch.randn(got.shape)
    mine, theirs = (torch.autograd.grad((t * target).sum(), logits)[0] for t in (got, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("scheme", ["rope", "alibi", "t5", "relative_key_query", "tupe+t5"])
@pytest.mark.parametrize("unpadded", [True, False])
def test_direct_kernels_give_what_ordinary_operations_give(scheme, unpadded, monkeypatch):
    """In training, with a learned bias that all layers share, with padding and without."""
    ids, mask = padded([tokens(n, seed=n) for n in ((9, 4, 6) if unpadded else (6, 6, 6))])
    results = []
    for direct in (True, False):
        monkeypatch.setattr(cpu_kernels, "_enabled", True)  # and back to what it was at the end
        cpu_kernels.set_enabled(direct)
        assert cpu_kernels.runs_by_sequence(torch.zeros(1)) == direct
        torch.manual_seed(0)
        model = perturb(PosEncForSequenceClassification(tiny_config(scheme)))
        loss = model(ids, attention_mask=mask, labels=torch.tensor([0, 1, 0])).loss
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_training_with_a_learned_bias_keeps_no_scores_of_each_layer():
    """The bytes that autograd saves grow with the layers by token vectors, not by (H, S, S)."""
    length, heads = 256, 4

    def saved(layers: int) -> int:
        sizes = {}
        model = encoder("t5", num_hidden_layers=layers, max_position_embeddings=512).train()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t
        ):
            model(tokens(1, length)).last_hidden_state.sum().backward()
        return sum(sizes.values())

    assert saved(4) - saved(2) < 2 * heads * length * length * 4 / 2
