"""A checkpoint with its code loads with the package, and as remote code, and answers with the frozen logits.

The checkpoint that the first release writes is kept here from then on, for every later version to load.
"""

import os

import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from hf_posenc.isolated_load import load_isolated
from tests.golden import golden

HEAD = "SequenceClassification"


def test_it_loads_with_the_package_and_as_remote_code(tmp_path):
    folder = str(tmp_path / "release")
    golden.tiny("rope", HEAD).save_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert type(model).__module__ == "hf_posenc.model.modeling_posenc"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    packed, auto = golden.batch("packed"), f"AutoModelFor{HEAD}"
    stranger = load_isolated(tmp_path, folder, auto, inputs=packed, environment=environment)
    for logits in (*(model(**golden.batch(layout)).logits for layout in golden.LAYOUTS), stranger.output):
        torch.testing.assert_close(logits, load_file(golden.LOGITS)[f"rope/{HEAD}"], atol=1e-5, rtol=0)
