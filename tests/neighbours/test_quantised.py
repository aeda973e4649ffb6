"""Dynamic int8 quantisation on CPU, PyTorch's own: fewer bytes, nearly the same answers."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from remote_code_harness import BATCH, SCHEMES, TEXTS, tiny_model, tiny_tokenizer
from torch import nn
from torch.ao.nn.quantized.dynamic import Linear as QuantisedLinear
from torch.ao.quantization import quantize_dynamic

from model_cards.studies.quantised import main, measure, table

HEAD = "PosEncForSequenceClassification"
ROOT = Path(__file__).parents[2]


def size(model: nn.Module) -> int:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_model_gives_nearly_the_same_logits(scheme: str) -> None:
    model = tiny_model(scheme, HEAD).eval()
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    small = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    # PyTorch looks for the exact type: a subclass of nn.Linear would be left as it is, without a word.
    assert [name for name, module in small.named_modules() if isinstance(module, QuantisedLinear)] == layers
    assert len(layers) >= 13
    assert size(small) < 0.7 * size(model)
    with torch.no_grad():
        expected, found = model(**BATCH).logits, small(**BATCH).logits
    assert found.isfinite().all()
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1)


def test_the_study_measures_both_on_the_same_texts() -> None:
    model, tokenizer = tiny_model("rope", HEAD), tiny_tokenizer()
    with torch.no_grad():
        said = [model(**tokenizer(text, return_tensors="pt")).logits.argmax().item() for text in TEXTS]
    labels = torch.tensor([said[0], said[1], (said[2] + 1) % 3])
    found = measure(model, tokenizer, TEXTS, labels, rounds=2, timed=2)
    assert found["float32"]["accuracy"] == pytest.approx(2 / 3)
    assert found["same_answer"] in (0, pytest.approx(1 / 3), pytest.approx(2 / 3), 1)
    assert 0 < found["largest_difference_of_logits"] < 0.2
    assert found["int8"]["megabytes"] == pytest.approx(size(quantize_dynamic(model, {nn.Linear})) / 1e6, rel=0.01)
    assert found["int8"]["milliseconds per text, one text"] > 0
    assert found["times as fast, batches of 32"] > 0
    assert not any(isinstance(module, QuantisedLinear) for module in model.modules())
    assert "| `rope`, tiny | 0.667 |" in table({"runs": {"rope, tiny": found}})


def test_the_guide_shows_what_was_measured() -> None:
    found = json.loads((ROOT / "model_cards/results/quantised.json").read_text())
    assert set(found["runs"]) == {"learned, tiny", "lspe, tiny", "rope, tiny"}
    assert table(found) in (ROOT / "docs/speed.md").read_text()
    for run in found["runs"].values():
        assert run["float32"]["accuracy"] > 0.85
        assert abs(run["int8"]["accuracy"] - run["float32"]["accuracy"]) < 0.01


def test_a_file_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["study", "--output", "out.csv"])
    with pytest.raises(ValueError, match="--output 'out.csv' doesn't end in .json"):
        main()
