"""torch.export and ONNX with dynamic batch and length, checked at sizes other than the exported one."""

from typing import Any

import pytest
import torch

from hf_posenc import SCHEMES, PosEncForSequenceClassification
from tests.support.common import EVERY_HOOK_AT_ONCE, encoder, others_slow, padded, perturb, tiny_config, tokens
from tests.support.references import scalings

BATCHES = [padded([tokens(n, seed=n) for n in lengths]) for lengths in ((9, 4, 6), (3,), (17, 1, 5, 5, 2))]


class Logits(torch.nn.Module):
    """Positional tensors in, one tensor out, as exporters want it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, attention_mask=attention_mask).logits


PRICES = ("none", {"problem_type": "regression", "label_mean": 1000.0, "label_scale": 200.0})
CASES = [("rope", {"rope_parameters": scalings(4, 8)[kind]}) for kind in ("yarn", "dynamic", "longrope")]
"""Of which `dynamic` and `longrope` turn each row by its own length, on both sides of the trained one."""
CASES += [("none", {"classifier_pooling": pooling}) for pooling in ("cls", "max")]
CASES += [("none", {"norm_position": "pre_only", "token_dropout": int(BATCHES[0][0][0, 3])})]


def classifier(scheme: str, **fields: Any) -> PosEncForSequenceClassification:
    torch.manual_seed(0)
    return perturb(PosEncForSequenceClassification(tiny_config(scheme, num_hidden_layers=1, **fields))).eval()


# Every scheme is exported by check_scheme, and to ONNX by tests/exporting/test_export_graphs.py.
@pytest.mark.parametrize(("scheme", "fields"), others_slow(CASES, PRICES, ("none", {"norm_type": "rms_norm"})))
def test_an_exported_program_gives_the_same_logits_at_other_sizes(scheme, fields):
    model = classifier(scheme, **fields)
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=64)}
    shapes = {"input_ids": sizes, "attention_mask": sizes}
    module = torch.export.export(Logits(model), BATCHES[0], dynamic_shapes=shapes).module()
    for ids, mask in BATCHES:
        expected = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(module(ids, mask), expected, atol=1e-5, rtol=1e-5)


ALL = [*((scheme, {}) for scheme in SCHEMES), ("rope+window", {}), *CASES]


@pytest.mark.parametrize(("scheme", "fields"), ALL)
def test_jit_traces_a_model_for_other_sizes(scheme, fields):
    model = classifier(scheme, **fields)
    traced = torch.jit.trace(Logits(model), BATCHES[0], check_trace=False)
    for ids, mask in BATCHES:
        torch.testing.assert_close(traced(ids, mask), model(ids, attention_mask=mask).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")  # the exporter's, on itself
@pytest.mark.parametrize(("scheme", "fields"), ALL)
def test_the_older_onnx_exporter_writes_a_graph_for_other_sizes(scheme, fields, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime isn't installed")
    model, axes = classifier(scheme, **fields), {0: "batch", 1: "length"}
    names, sizes = ["input_ids", "attention_mask"], {"input_ids": axes, "attention_mask": axes}
    path = tmp_path / "model.onnx"
    torch.onnx.export(Logits(model), BATCHES[0], path, dynamo=False, input_names=names, dynamic_axes=sizes)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in BATCHES:
        (logits,) = session.run(None, {name: part.numpy() for name, part in zip(names, batch, strict=True)})
        expected = model(batch[0], attention_mask=batch[1]).logits
        torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-4, rtol=1e-4)


SOME = [("learned+test_layer_distance", {})]
SOME += [("rope", {"rope_parameters": scalings(4, 3)[kind]}) for kind in ("dynamic", "longrope")]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "fields"), others_slow(SOME, (EVERY_HOOK_AT_ONCE, {})))
def test_a_compiled_model_gives_the_same_hidden_states_and_packed_positions_hold_their_borders(scheme, fields):
    torch._dynamo.reset()
    model = encoder(scheme, num_hidden_layers=1, **fields)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    ids = tokens(2, 9)
    mask = torch.tensor([[1] * 9, [1] * 7 + [0] * 2])
    for positions in (
        None,
        torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2], [0, 1, 0, 1, 2, 3, 4, 0, 0]]),
        torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 2, 1, 4, 3, 5, 6, 0, 0]]),
    ):
        expected = model(ids, attention_mask=mask, position_ids=positions).last_hidden_state
        got = compiled(ids, attention_mask=mask, position_ids=positions).last_hidden_state
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_a_table_checks_the_static_length_under_export():
    model = classifier("learned")
    too_long = padded([tokens(70)])
    # Older torch says only that tracing met a ValueError.
    with pytest.raises(Exception, match="has positions 0 to 63, the input has 0 to 69|ExceptionVariable.*ValueError"):
        torch.export.export(Logits(model), too_long)
