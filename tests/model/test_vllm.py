"""vLLM's Transformers backend, as the source of 0.33 has it, without vLLM: what it asks of a model, and what it does.

It builds the bare model with `_attn_implementation = "vllm"`, looks in the `forward` of each module with a `layer_idx`
for one call of what `ALL_ATTENTION_FUNCTIONS.get_interface(...)` gave, puts layers of its own in place of linear layers
and norms, and calls the model on one row of packed tokens with `position_ids` alone. Its attention reads (1, H, T, d),
gives (T, H d), scales by d^-1/2 whatever it is told, and sees no mask. A classifier is the bare model, the first token
of each sequence, and the head's `classifier`.
"""

import ast
import inspect
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from common import encoder, perturb, tiny_config, tokens
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posenc import POSITIONS, PosEncForSequenceClassification, PosEncModel, RotaryPosition

LENGTHS = (5, 1, 9, 3)
POSITION_IDS = torch.cat([torch.arange(n) for n in LENGTHS])[None]
IDS = tokens(1, sum(LENGTHS))
SCHEMES = ["none", "sinusoidal", "learned", "lspe", "fourier", "rope", "learned+rope"]


class Replaced(nn.Module):
    """A linear layer of the server's: no `nn.Linear`, with the weights of the one that it stands for."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


def vllm_attention(module, query, key, value, attention_mask, **kwargs):
    assert attention_mask is None
    q, k, v = (x.transpose(1, 2).reshape(query.shape[-2], -1) for x in (query, key, value))
    return module.attn(q, k, v), None


class EncoderOnlyAttention(nn.Module):
    """It learns where sequences begin from the server."""

    def __init__(self, heads, width):
        super().__init__()
        self.heads, self.width = heads, width

    def forward(self, q, k, v):
        outs = []
        by_head = (x.view(-1, self.heads, self.width).transpose(0, 1).split(LENGTHS, 1) for x in (q, k, v))
        for query, key, value in zip(*by_head, strict=True):
            weights = (query @ key.transpose(-1, -2) * self.width**-0.5).softmax(-1)
            outs.append((weights @ value).transpose(0, 1).flatten(1))
        return torch.cat(outs)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "vllm", vllm_attention)


def config_of(scheme, **fields):
    config = tiny_config(scheme, **fields)
    config._attn_implementation = "vllm"
    return config


def calls_of_the_interface(forward):
    """The calls of names that were assigned from the table of attention functions."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(forward))))
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    names = {
        target.id
        for node in assigned
        for target in node.targets
        if ast.unparse(node.value.func) == "ALL_ATTENTION_FUNCTIONS.get_interface" and isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [call for call in calls if call.func.id in names]


def served(model):
    """The model with the server's layers, and its attention in the module that it found."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Replaced(child))
        if isinstance(getattr(module, "layer_idx", None), int) and module.config._attn_implementation == "vllm":
            heads = model.config.num_attention_heads
            module.attn = EncoderOnlyAttention(heads, model.config.hidden_size // heads)
    return model


def call(model, ids=IDS, positions=POSITION_IDS):
    with torch.no_grad():
        outputs = model(input_ids=ids, inputs_embeds=None, use_cache=False, position_ids=positions, return_dict=False)
    return outputs[0][0]


def one_by_one(model):
    with torch.no_grad():
        return torch.cat([model(ids)[0][0] for ids in IDS.split(LENGTHS, 1)])


def test_each_layer_calls_the_attention_interface_once_where_vllm_looks_for_it():
    model = PosEncModel(config_of("rope"))
    layers = [module for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int)]
    assert len(layers) == model.config.num_hidden_layers
    for number, layer in enumerate(layers):
        (call,) = calls_of_the_interface(type(layer).forward)
        assert "scaling" not in {keyword.arg for keyword in call.keywords}  # it couldn't resolve it
        assert (layer.layer_idx, layer.is_causal) == (number, False)
        assert layer.config is model.config
    assert PosEncModel.is_backend_compatible()


@pytest.mark.parametrize("gated", [False, True])
def test_the_plan_of_tensor_parallelism_names_every_linear_layer_of_the_encoder_and_no_other(gated):
    model = PosEncModel(tiny_config("rope", mlp_gated=gated))
    layers = {name for name, module in model.layers.named_modules(prefix="layers") if isinstance(module, nn.Linear)}
    kinds = {re.sub(r"\d+", "*", name) for name in layers}
    assert kinds == model.config.base_model_tp_plan.keys() == model.tp_plan.keys()


IN_TWO_PROCESSES = """
import sys, torch, hf_posenc
ids = torch.arange(5, 25).view(2, 10)
alone, split = (hf_posenc.PosEncModel.from_pretrained(sys.argv[1], tp_plan=plan).eval() for plan in (None, "auto"))
assert split.layers[0].attention.query.weight.to_local().shape[0] == alone.config.hidden_size // 2
with torch.no_grad():
    torch.testing.assert_close(split(ids)[0], alone(ids)[0], atol=1e-5, rtol=1e-5)
"""


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"mlp_gated": True}, {"mlp_gated": True, "mlp_bias": False}])
def test_heads_and_feed_forward_networks_split_between_two_processes_give_the_same(fields, tmp_path):
    perturb(PosEncModel(tiny_config("learned+rope", **fields))).save_pretrained(tmp_path / "model")
    (tmp_path / "run.py").write_text(IN_TWO_PROCESSES)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words = [*launch, str(tmp_path / "run.py"), str(tmp_path / "model")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


NOMIC = {"mlp_gated": True, "attention_bias": False, "mlp_bias": False, "norm_position": "post"}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("scheme", "fields"), [*((scheme, {}) for scheme in SCHEMES), ("rope", NOMIC)])
def test_a_packed_row_gives_what_the_sequences_give_alone(scheme, fields, compiled):
    model = served(perturb(PosEncModel(config_of(scheme, **fields))).eval())
    plain = encoder(scheme, **fields)
    plain.load_state_dict(model.state_dict())
    if compiled:
        torch._dynamo.reset()
        model = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(call(model), one_by_one(plain), atol=1e-5, rtol=1e-5)


def test_more_tokens_in_a_row_than_a_table_has_positions_are_no_error():
    model = PosEncModel(config_of("learned")).eval()
    limit = model.config.max_position_embeddings
    served(model)
    for module in model.modules():
        if isinstance(module, EncoderOnlyAttention):
            module.forward = lambda q, k, v: v
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    rows = torch.arange(limit).repeat(2)[None]
    assert call(compiled, tokens(1, 2 * limit), rows).isfinite().all()
    with pytest.raises(ValueError, match=f"has {limit} positions, the input has {2 * limit}"):
        call(model, tokens(1, 2 * limit), torch.arange(2 * limit)[None])


def test_a_classifier_of_the_first_token_is_what_vllm_computes():
    fields = {"classifier_pooling": "cls", "classifier_hidden_act": None, "num_labels": 3}
    plain = perturb(PosEncForSequenceClassification(tiny_config("rope", **fields))).eval()
    head = PosEncForSequenceClassification(config_of("rope", **fields))
    model = PosEncModel(config_of("rope", **fields))
    head.load_state_dict(plain.state_dict())
    model.load_state_dict(plain.model.state_dict())
    starts = torch.tensor(LENGTHS).cumsum(0) - torch.tensor(LENGTHS)
    logits = head.classifier(call(served(model.eval()))[starts])
    expected = torch.cat([plain(ids).logits for ids in IDS.split(LENGTHS, 1)])
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"classifier_pooling": "mean"},
        {"classifier_hidden_act": "tanh"},
        {"label_scale": 2.0, "problem_type": "regression"},
        {"label_mean": 1.0, "problem_type": "regression"},
    ],
)
def test_a_head_that_vllm_would_compute_otherwise_is_refused(fields):
    name, value = next(iter(fields.items()))
    fields = {"classifier_pooling": "cls", "classifier_hidden_act": None, **fields}
    PosEncForSequenceClassification(tiny_config("rope", **fields))
    with pytest.raises(ValueError, match=f"vLLM pools the first token.*{name}={value!r}.*classifier_pooling='cls'"):
        PosEncForSequenceClassification(config_of("rope", **fields))


class Wide(RotaryPosition):
    def rotate(self, q, k, state, layer_idx):
        return tuple(torch.cat((x, x), -1) for x in (q, k))


@pytest.mark.parametrize("scheme", ["wide", "cosine_bias", "rope+cosine_bias", "pope"])
def test_heads_that_a_rotation_made_wider_are_refused(scheme, monkeypatch):
    monkeypatch.setitem(POSITIONS, "wide", Wide)
    model = served(PosEncModel(config_of(scheme)).eval())
    message = rf"'vllm' takes heads of width \d+, and '{re.escape(scheme)}' makes heads \d+ wide"
    with pytest.raises(ValueError, match=message):
        call(model)
