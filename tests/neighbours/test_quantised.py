"""PyTorch's dynamic int8 quantisation on CPU: fewer bytes, nearly the same answers."""

import io

import pytest
import torch
from torch import nn
from torch.ao.nn.quantized.dynamic import Linear as QuantisedLinear
from torch.ao.quantization import quantize_dynamic

from tests.support.remote_code import BATCH, BUILTIN, HEAD, tiny_model


def size(model: nn.Module) -> int:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("scheme", BUILTIN)
def test_a_quantized_model_gives_nearly_the_same_logits(scheme):
    model = tiny_model(scheme, HEAD)
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    small = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    # PyTorch looks for the exact type: a subclass of nn.Linear would be left as it is, without a word.
    assert [name for name, module in small.named_modules() if isinstance(module, QuantisedLinear)] == layers
    assert len(layers) >= 13
    assert size(small) < 0.7 * size(model)
    with torch.no_grad():
        expected, logits = model(**BATCH).logits, small(**BATCH).logits
    assert not torch.equal(logits, expected)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.1)
