"""What attention does for a GPU, as far as a CPU can show it: with stubs of its kernels, by strides and counts."""

import pytest
import torch

from hf_posenc import SCHEMES, PosEncModel, RotaryPosition, Tokens, WindowPosition
from hf_posenc.model import attention, scheme_math
from hf_posenc.model.scheme_math import constant
from tests.support.common import encoder, tiny_config, tokens
from tests.support.references import varlen_attention

MASK = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
IDS = tokens(2, 9)


class Soft(WindowPosition):
    """A window whose border is a slope, not a wall."""

    def of_distance(self, distance, layer):
        return -(distance.abs() - self.sliding_window).clamp(min=0).float().unsqueeze(-1)


class Partly(WindowPosition):
    """One whose second layer has a bias that is no window."""

    def windows(self, layer):
        return super().windows(layer) if layer == 0 else None


class Narrow(WindowPosition):
    """One of other sizes, which leaves the bias as it is."""

    def __init__(self, *, sliding_window=2):
        super().__init__(sliding_window=sliding_window)


@pytest.fixture
def widths(monkeypatch):
    """The widths of the heads that varlen attention is called with, where it is chosen on a CPU."""
    seen = []

    def varlen(q, *rest, **options):
        seen.append(q.shape[-1])
        return varlen_attention(q, *rest, **options)

    monkeypatch.setattr(attention, "varlen_attn", varlen)
    monkeypatch.setattr(attention, "_runs_varlen", lambda scheme, layout, *_: layout.index is not None)
    return seen


@pytest.mark.parametrize(
    ("width", "dropout", "taken"),
    [(8, 0.0, 2), (4, 0.0, 0), (8, 1e-9, 1), (192, 0.0, 2), (200, 0.0, 0), (224, 0.0, 0), (232, 0.0, 2), (264, 0.0, 0)],
)
def test_varlen_gets_what_its_kernel_takes_and_other_layers_are_padded(widths, monkeypatch, width, dropout, taken):
    model = PosEncModel(tiny_config("rope", hidden_size=2 * width, num_attention_heads=2)).eval()
    model.layers[1].attention.dropout = torch.nn.Dropout(dropout)  # in training mode
    model.config._attn_implementation = "sdpa"
    got = model(IDS, attention_mask=MASK).last_hidden_state
    assert widths == [width] * taken
    monkeypatch.undo()
    torch.testing.assert_close(got, model(IDS, attention_mask=MASK).last_hidden_state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["none", "rope", "rope+window"])
def test_a_layer_that_is_compiled_alone_is_one_graph_on_tokens(widths, monkeypatch, scheme):
    """A graph that breaks in each layer makes a step slower than without a compiler."""
    monkeypatch.setattr(attention, "varlen_attn", lambda q, k, v, *_, **__: q + k + v)  # which can be traced
    model = PosEncModel(tiny_config(scheme)).eval()
    expected = model(IDS, attention_mask=MASK).last_hidden_state
    torch.compiler.reset()  # what other tests compiled counts towards the limit of graphs
    for layer in model.layers:
        layer.compile(backend="eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(model(IDS, attention_mask=MASK).last_hidden_state, expected)


@pytest.mark.parametrize(
    ("scheme", "capability", "taken"),
    [
        *[("rope", (7, 5), False), ("rope", (8, 0), True), ("rope", (9, 0), True), ("t5", (9, 0), False)],
        *[("rope+window", (8, 0), True), ("dual_triangle", (8, 0), True), ("window+alibi", (8, 0), False)],
        *[("soft", (8, 0), False), ("rope+soft", (8, 0), False), ("partly", (8, 0), False), ("narrow", (8, 0), True)],
    ],
)
def test_varlen_runs_from_an_a100_on_in_half_precision_without_bias_and_dropout(monkeypatch, scheme, capability, taken):
    for own in (Soft, Partly, Narrow):
        monkeypatch.setitem(SCHEMES, own.__name__.lower(), own)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    model = encoder(scheme)
    batch = model.make_layout(IDS, attention_mask=MASK)
    x = torch.zeros(1, 14, 32, dtype=torch.float16)
    assert not attention._runs_varlen(model.position, batch, x, False, 2)  # on a CPU
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert attention._runs_varlen(model.position, batch, x, False, 2) == taken
    assert not attention._runs_varlen(model.position, batch, x, True, 2)
    assert not attention._runs_varlen(model.position, batch, x.float(), False, 2)
    far = model.make_layout(IDS, attention_mask=MASK, position_ids=torch.arange(9) * 3)
    assert attention._runs_varlen(model.position, far, x, False, 2) == (
        scheme == "rope" and taken
    )  # windows count tokens


@pytest.mark.parametrize("dropout", [0.0, 1e-9])  # a layer that drops is padded
@pytest.mark.parametrize("scheme", ["window", "rope+window", "dual_triangle", "pope+dual_triangle"])
def test_windows_of_the_kernel_are_the_bias(widths, monkeypatch, scheme, dropout):
    kwargs = {"sliding_window": 2, "global_attn_every_n_layers": 2}
    kwargs = {name: kwargs for name in scheme.split("+") if name == "window"}
    model = PosEncModel(tiny_config(scheme, position_embedding_kwargs=kwargs.get(scheme, kwargs), num_hidden_layers=3))
    model.eval().layers[1].attention.dropout = torch.nn.Dropout(dropout)
    model.config._attn_implementation = "sdpa"
    packed = {"input_ids": IDS[:1], "seq_idx": torch.tensor([[0] * 3 + [1] * 6])}
    batches = {"input_ids": IDS, "attention_mask": MASK}, packed
    got = [model(**batch).last_hidden_state for batch in batches]
    assert len(widths) == 2 * (3 - (dropout > 0)) * (1 + ("dual" in scheme))
    monkeypatch.undo()
    for batch, states in zip(batches, got, strict=True):
        torch.testing.assert_close(states, model(**batch).last_hidden_state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"interleaved": True}, {"rope_parameters": {"partial_rotary_factor": 0.5}}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_and_keys_are_turned_together_as_each_alone(monkeypatch, options, dtype):
    scheme = RotaryPosition(head_dim=8, **options)
    state = scheme.rotary(Tokens.from_positions(torch.arange(9)))
    results = []
    for is_cuda in (False, True):
        monkeypatch.setattr(torch.Tensor, "is_cuda", is_cuda)
        torch.manual_seed(0)
        q, k, *gradients = (torch.randn(9, 2, 8, dtype=dtype, requires_grad=True) for _ in range(4))
        turned = scheme.rotate(q, k, state, 0)
        results.append((*turned, *torch.autograd.grad(turned, (q, k), gradients)))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.slow  # a process group
def test_fsdp_in_bfloat16_leaves_angles_and_biases_in_float32(tmp_path):
    """It casts the arguments of each layer; what attention shares among layers isn't one of them."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mesh, policy = init_device_mesh("cpu", (1,)), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for scheme, share in (("rope", "state"), ("alibi", "bias")):
            model = PosEncModel(tiny_config(scheme)).eval()
            for layer in model.layers:
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            fully_shard(model, mesh=mesh, mp_policy=policy)
            dtypes = []

            def remember(module, inputs, share=share, dtypes=dtypes):
                hidden_states, attend = inputs
                tensors = getattr(attend, share)
                dtypes += [hidden_states.dtype, *(x.dtype for x in (tensors if share == "state" else [tensors]))]

            model.layers[0].register_forward_pre_hook(remember)
            assert model(IDS, attention_mask=MASK).last_hidden_state.isfinite().all()
            assert dtypes[0] == torch.bfloat16
            assert set(dtypes[1:]) == {torch.float32}, (scheme, dtypes)
    finally:
        dist.destroy_process_group()


def test_constants_are_made_once_on_a_gpu():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = constant((1.0, 2.0), torch.device("cuda"))
        assert constant((1.0, 2.0), torch.device("cuda")) is not fake  # nothing of a trace is kept
    assert torch.equal(constant((1.0, 2.0), torch.device("cpu")), torch.tensor([1.0, 2.0]))


def test_a_constant_that_is_kept_serves_every_later_call(monkeypatch):
    plain, gpu = torch.tensor, torch.device("cuda")
    monkeypatch.setattr(torch, "tensor", lambda numbers, dtype, device: plain(numbers, dtype=dtype))
    monkeypatch.setattr(scheme_math, "_constants", {})
    with torch.inference_mode():
        kept = constant((1.0,), gpu)
    torch.func.grad(lambda x: x @ constant((2.0,), gpu))(torch.ones(1))
    assert list(scheme_math._constants) == [((1.0,), gpu)]  # that of the gradient ends with it
    assert constant((1.0,), gpu) is kept
    (torch.ones(1, requires_grad=True) * kept).sum().backward()
