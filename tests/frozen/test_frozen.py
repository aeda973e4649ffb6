"""Models that version 0.1 wrote answer as they did: every scheme with every head, variants and combinations."""

import json

import pytest
import torch
from make_frozen import HEADS, answers, read
from safetensors.torch import save_file

CONFIGS, TENSORS = read()


@pytest.mark.parametrize("case", CONFIGS)
def test_a_model_of_version_0_1_answers_as_it_did(case, tmp_path):
    head = case.rpartition("/")[2]
    start = f"{case}/"
    weights = {name.removeprefix(start): tensor for name, tensor in TENSORS.items() if name.startswith(start)}
    expected = TENSORS[f"{case}:answers"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(CONFIGS[case])
    model, report = HEADS[head].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    torch.testing.assert_close(answers(model, head), expected, atol=2e-6, rtol=1e-5)
    again = json.loads(model.config.to_json_string(use_diff=False))
    before = json.loads(CONFIGS[case])
    fields = before.keys() - {"transformers_version", "_name_or_path", "dtype", "architectures"}
    assert {name: again[name] for name in fields} == {name: before[name] for name in fields}
