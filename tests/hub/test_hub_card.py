"""What the page of model cards says of loading works as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import WRITER, Hub

import hf_posenc
from model_cards.make_cards import FOLDER


@pytest.mark.slow
def test_the_code_of_the_page_loads_what_it_publishes(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "runs").mkdir()
    checkpoint.rename(tmp_path / "runs" / "mine")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = {**clean, "HF_ENDPOINT": hub.url, "HF_TOKEN": WRITER, "HF_HOME": str(tmp_path / "home")}
    environment |= {"PYTHONPATH": str(Path(hf_posenc.__file__).parents[1]), "HF_HUB_DISABLE_XET": "1"}
    shown = "\nprint(type(classifier).__name__, type(tokenizer).__name__, commit)\n"
    words = [sys.executable, "-c", code + shown]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, _, commit = done.stdout.strip().splitlines()[-1].split()
    assert loaded == "PosEncForSequenceClassification"
    assert commit in hub.repos["me/mine"].commits
    assert f"`{commit}`" in hub.files("me/mine")["README.md"].decode()
