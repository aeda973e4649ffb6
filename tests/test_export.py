"""torch.export and ONNX with dynamic batch and length, checked at sizes other than the exported one."""

import pytest
import torch
from common import EVERY_HOOK, SCHEMES, padded, perturb, tiny_config, tokens

from hf_posenc import PosEncForSequenceClassification, PosEncModel

BATCHES = [padded([tokens(n, seed=n) for n in lengths]) for lengths in ((9, 4, 6), (3,), (17, 1, 5, 5, 2))]


class Logits(torch.nn.Module):
    """Positional tensors in, one tensor out, as exporters want it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        out = self.model(input_ids, attention_mask=attention_mask)
        return out[0]


def classifier(scheme: str, pooling: str = "mean") -> PosEncForSequenceClassification:
    torch.manual_seed(0)
    return perturb(PosEncForSequenceClassification(tiny_config(scheme, classifier_pooling=pooling))).eval()


def dynamic_shapes() -> dict:
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=64)
    return {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}


@pytest.mark.parametrize("scheme", EVERY_HOOK)
def test_an_exported_program_gives_the_same_logits_at_other_sizes(scheme):
    model = classifier(scheme)
    program = torch.export.export(Logits(model), BATCHES[0], dynamic_shapes=dynamic_shapes())
    for ids, mask in BATCHES:
        expected = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(program.module()(ids, mask), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "max"])
def test_other_poolings_export(pooling):
    model = classifier("rope", pooling)
    program = torch.export.export(Logits(model), BATCHES[0], dynamic_shapes=dynamic_shapes())
    for ids, mask in BATCHES:
        expected = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(program.module()(ids, mask), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_onnxruntime_gives_the_same_logits_at_other_sizes(scheme, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = classifier(scheme)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        Logits(model),
        BATCHES[0],
        path,
        dynamo=True,
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamic_shapes=dynamic_shapes(),
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for ids, mask in BATCHES:
        (logits,) = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
        expected = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scheme", ["sinusoidal", "rope", "test_layer_distance"])
def test_a_compiled_model_gives_the_same_hidden_states(scheme):
    torch._dynamo.reset()
    model = perturb(PosEncModel(tiny_config(scheme))).eval()
    ids, mask = BATCHES[0]
    expected = model(ids, attention_mask=mask).last_hidden_state
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids, attention_mask=mask).last_hidden_state, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["learned", "rope", "test_slope"])
def test_packed_positions_hold_their_borders_when_compiled(scheme):
    torch._dynamo.reset()
    model = perturb(PosEncModel(tiny_config(scheme))).eval()
    ids = tokens(2, 9)
    mask = torch.tensor([[1] * 9, [1] * 7 + [0] * 2])
    for positions in (
        torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2], [0, 1, 0, 1, 2, 3, 4, 0, 0]]),
        torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 2, 1, 4, 3, 5, 6, 0, 0]]),
    ):
        expected = model(ids, attention_mask=mask, position_ids=positions).last_hidden_state
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        got = compiled(ids, attention_mask=mask, position_ids=positions).last_hidden_state
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_a_table_checks_the_static_length_under_export():
    model = classifier("learned")
    too_long = padded([tokens(70)])
    # Older torch says only that tracing met a ValueError.
    with pytest.raises(Exception, match="has 64 positions, the input has 70|ExceptionVariable.*ValueError"):
        torch.export.export(Logits(model), too_long)
