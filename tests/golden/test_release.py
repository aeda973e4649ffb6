"""A checkpoint with its code loads with the package, and as remote code, and answers with the frozen logits.

The checkpoint that the first release writes is kept here from then on, for every later version to load.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import golden
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

HEAD = "SequenceClassification"

STRANGER = """
import json, sys
sys.modules["hf_posenc"] = None  # as where it isn't installed
import torch
from transformers import AutoModelForSequenceClassification

model = AutoModelForSequenceClassification.from_pretrained("release", trust_remote_code=True)
assert "transformers_modules" in type(model).__module__
batches = [{name: torch.tensor(rows) for name, rows in batch.items()} for batch in json.load(sys.stdin)]
print(json.dumps([model(**batch).logits.tolist() for batch in batches]))
"""


def test_it_loads_with_the_package_and_as_remote_code(tmp_path: Path) -> None:
    batches = [golden.batch(layout) for layout in golden.LAYOUTS]
    golden.tiny("rope", HEAD).save_pretrained(tmp_path / "release")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "release")
    assert type(model).__module__ == "hf_posenc.model.modeling_posenc"
    written = json.dumps([{name: value.tolist() for name, value in batch.items()} for batch in batches])
    command, environment = [sys.executable, "-c", STRANGER], {**os.environ, "HF_HOME": str(tmp_path / "home")}
    printed = subprocess.check_output(command, input=written, text=True, cwd=tmp_path, env=environment, timeout=300)
    for logits in (*(model(**batch).logits for batch in batches), *map(torch.tensor, json.loads(printed))):
        torch.testing.assert_close(logits, load_file(golden.LOGITS)[f"rope/{HEAD}"], atol=1e-5, rtol=0)
