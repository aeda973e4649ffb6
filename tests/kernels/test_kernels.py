"""The package's CPU kernels give PyTorch's results, and stand back where an operation of theirs is missing."""

import itertools
import re
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from hf_posenc import kernels
from tests.support.common import assert_equal_with_gradients, encoder, padded, tokens


@pytest.fixture
def onednn(monkeypatch):
    """oneDNN's product, on any processor."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch was built without oneDNN")
    monkeypatch.setattr(kernels.linear, "onednn_is_faster", lambda: True)


def biased(heads, rows, length, seed=0):
    """q, k, v (3, 2, length, 4) and a bias (rows, heads, length, length) with a masked key, all with gradients."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 3, 2, length, 4, dtype=torch.float64, generator=generator)
    bias = torch.randn(rows, heads, length, length, dtype=torch.float64, generator=generator)
    bias[..., -1] = torch.finfo(torch.float64).min if length > 2 else 0.0
    return [t.requires_grad_() for t in (q, k, v, bias)]


def fused(*qkv_bias):
    return kernels.attend(None, *qkv_bias, dropout=0.0, scaling=0.3)[0].transpose(1, 2)


@pytest.mark.parametrize(("heads", "rows", "length"), list(itertools.product((1, 2), (1, 3), (1, 2, 7))))
def test_attention_with_a_bias_has_the_values_and_gradients_of_plain_operations(heads, rows, length, monkeypatch):
    monkeypatch.setattr(kernels.attention, "BLOCK", 3 * length**2)  # one head at a time
    leaves = biased(heads, rows, length)
    q, k, v, bias = leaves
    got = fused(*leaves)
    expected = (0.3 * q @ k.transpose(-1, -2) + bias).softmax(-1) @ v
    assert_equal_with_gradients(got, expected, *leaves, atol=1e-7)


def test_gradients_in_half_precision_are_computed_in_float32():
    generator = torch.Generator().manual_seed(0)
    q, k, v, target = torch.randn(4, 3, 2, 64, 8, generator=generator).bfloat16()
    bias = torch.randn(1, 2, 64, 64, generator=generator).bfloat16()
    leaves = [t.clone().requires_grad_() for t in (q, k, v, bias)]
    q, k, v, bias = precise = [t.detach().double().requires_grad_() for t in leaves]
    mine = torch.autograd.grad(fused(*leaves), leaves, target)
    expected = (0.3 * q @ k.transpose(-1, -2) + bias).softmax(-1) @ v
    for gradient, wanted in zip(mine, torch.autograd.grad(expected, precise, target.double()), strict=True):
        assert (gradient.double() - wanted).norm() < 0.004 * wanted.norm()  # 0.002 is the rounding of the results alone


def test_attention_with_dropout_is_left_to_pytorch():
    q, *_, bias = biased(1, 1, 3)
    assert kernels.gains_from_fusion(q, bias, 0.0)
    assert not kernels.gains_from_fusion(q, bias, 0.1)


@pytest.mark.slow
def test_attention_with_a_bias_has_second_derivatives():
    leaves = biased(2, 1, 4)
    assert torch.autograd.gradgradcheck(fused, leaves)


@pytest.mark.parametrize(("shape", "with_bias"), list(itertools.product([(3, 16), (2, 5, 16)], [True, False])))
def test_a_linear_layer_has_the_values_and_gradients_of_pytorchs(shape, with_bias, onednn):
    layer, x = nn.Linear(16, 7, bias=with_bias), torch.randn(shape, requires_grad=True)
    inputs = [x, *layer.parameters()]
    for features in (x, x.transpose(0, 1).contiguous().transpose(0, 1)):
        got, expected = kernels.apply_linear(layer, features), functional.linear(features, layer.weight, layer.bias)
        assert_equal_with_gradients(got, expected, *inputs)
    layer.requires_grad_(False)  # as in an adapted model
    assert_equal_with_gradients(kernels.apply_linear(layer, x), functional.linear(x, layer.weight, layer.bias), x)
    with torch.no_grad():
        torch.testing.assert_close(kernels.apply_linear(layer, x), functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("bias", [True, False])
def test_a_gated_network_runs_in_onednn_and_has_the_gradients_of_pytorchs(bias, onednn, monkeypatch):
    ids, mask = padded([tokens(9), tokens(4), tokens(17)])
    called, product = [], kernels.linear._product
    monkeypatch.setattr(kernels.linear, "_product", lambda x, w, b=None: called.append(w.shape) or product(x, w, b))
    results = []
    for enabled in (True, False):
        monkeypatch.setattr(kernels.switch, "_enabled", enabled)
        model = encoder("rope", mlp_gated=True, mlp_bias=bias, attention_bias=bias, norm_position="post")
        out = model(ids, attention_mask=mask).last_hidden_state
        assert len(called) == 2 * 7  # each linear layer once
        out.square().sum().backward()
        results.append((out, {name: p.grad for name, p in model.named_parameters()}))
        called = called[: 2 * 7]
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_linear_is_pytorchs_own_where_somebody_watches_or_transforms(onednn):
    layer = nn.Linear(16, 7)
    x = torch.randn(5, 16)
    with FlopCounterMode(display=False) as counter:
        kernels.apply_linear(layer, x)
    assert counter.get_total_flops() == 2 * 5 * 16 * 7
    torch.testing.assert_close(torch.func.vmap(lambda row: kernels.apply_linear(layer, row))(x), layer(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert kernels.apply_linear(layer, x).dtype == torch.bfloat16
    seen = []
    handle = layer.register_forward_hook(lambda *_: seen.append("hook"))
    kernels.apply_linear(layer, x)
    handle.remove()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global"))
    kernels.apply_linear(layer, x)
    handle.remove()
    layer.forward = lambda x: seen.append("replaced")
    kernels.apply_linear(layer, x)
    del layer.forward
    adapted = type("Adapted", (nn.Linear,), {"forward": lambda *_: seen.append("subclass")})(16, 7)
    kernels.apply_linear(adapted, x)
    assert seen == ["hook", "global", "replaced", "subclass"]
    layer.double()
    assert kernels.apply_linear(layer, x.double()).dtype == torch.float64
    assert kernels.apply_linear(layer, x[:0].double()).shape == (0, 7)


@pytest.mark.parametrize("product", [lambda x, weight, bias: x @ weight.T, lambda x, weight, bias: 1 / 0])
def test_a_product_that_fails_or_gives_other_numbers_is_not_used(product, monkeypatch):
    monkeypatch.setattr(kernels.linear, "_product", product)
    assert not kernels.linear._gives_the_product()


def test_a_gradient_of_a_linear_layer_can_be_differentiated_again(onednn):
    layer, x = nn.Linear(4, 3), torch.randn(2, 4, requires_grad=True)
    grads = []
    for out in (kernels.apply_linear(layer, x), layer(x)):
        first = torch.autograd.grad(out.square().sum(), x, create_graph=True)[0]
        grads.append(torch.autograd.grad(first.square().sum(), layer.weight)[0])
    torch.testing.assert_close(*grads)


def test_the_switch_turns_all_of_it_off(onednn, monkeypatch):
    monkeypatch.setattr(kernels.linear, "_product", lambda *arguments: pytest.fail("oneDNN was called"))
    kernels.set_enabled(False)
    try:
        kernels.apply_linear(nn.Linear(4, 3), torch.randn(2, 4))
        assert not kernels.switch.takes(torch.zeros(1))
        q, *_, bias = biased(1, 1, 3)
        assert not kernels.gains_from_fusion(q, bias, 0.0)
    finally:
        kernels.set_enabled(True)


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


# Each operation that PyTorch doesn't promise to keep, taken away or broken before hf_posenc is imported, in a process
# of its own: a copy of one that has imported the rest.
CHANGES = {
    "nothing": "",
    "no oneDNN product": "import torch.ops\ntorch.ops.mkldnn.__dict__['_linear_pointwise'] = None",
    "a oneDNN product that raises": (
        "def broken(*given): raise RuntimeError('gone')\ntorch.ops.mkldnn.__dict__['_linear_pointwise'] = broken"
    ),
    "a oneDNN product of other numbers": (
        "torch.ops.mkldnn.__dict__['_linear_pointwise'] = lambda x, w, *rest: x @ w.T * 2"
    ),
    "no dispatch stack": "del torch._C._len_torch_dispatch_stack",
    "no functorch": (
        "import types\nfrom hf_posenc.kernels import switch\n"
        "switch.torch = types.SimpleNamespace(**{**vars(torch), '_C': types.SimpleNamespace()})"
    ),
    "no forward-mode level": "from torch.autograd import forward_ad\ndel forward_ad._current_level",
    "no global hooks": "import torch.nn.modules.module as module\ndel module._has_any_global_hook",
}
ABSENT = """
import os, sys, traceback, torch, transformers.modeling_utils

def answer():
    from hf_posenc import PosEncConfig, PosEncForSequenceClassification
    torch.manual_seed(0)
    config = PosEncConfig.from_size("tiny", vocab_size=50, position_embedding_type="t5", hidden_dropout_prob=0.0)
    model = PosEncForSequenceClassification(config)
    ids = torch.arange(1, 25).view(2, 12)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    loss = model(ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss
    loss.backward()
    print(*(f"{float(x):.5f}" for x in (loss, model.model.position.tables[0].weight.grad.norm(),
                                        model.model.layers[0].intermediate.weight.grad.norm())), flush=True)
    model.train()
    model.model.layers[0].dropout.p = 0.5
    assert torch.isfinite(model(ids, attention_mask=mask).logits).all()

assert "hf_posenc" not in sys.modules
for change in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            exec(change)
            answer()
        except BaseException:
            print(traceback.format_exc().splitlines()[-1], flush=True)
            os._exit(1)
        os._exit(0)
    print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def answers():
    """What the process of each change prints, and its exit code."""
    words = [sys.executable, "-c", ABSENT, *CHANGES.values()]
    printed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(zip(CHANGES, re.findall(r"(.*?)exit code (-?\d+)\n", printed, re.DOTALL), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("change", list(CHANGES)[1:])
def test_results_are_the_same_without_each_private_operation(change, answers):
    assert [answers[name][1] for name in ("nothing", change)] == ["0", "0"], answers[change][0]
    expected, got = ([float(word) for word in answers[name][0].split()] for name in ("nothing", change))
    assert got == pytest.approx(expected, rel=1e-4)
