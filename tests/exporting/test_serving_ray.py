"""examples/ray_predict.py on a local Ray with two actors, one of which is killed."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hf_posenc
from tests.support.exporting import LABELS, TEXTS, checkpoint

SCRIPT = Path(__file__).parents[2] / "examples" / "ray_predict.py"
ROWS, BLOCK = 1_600, 32  # two texts a batch, 16 batches a block
LONG = "old " * 600


def text_of(number):
    """Of each 32 one is cut and two are empty."""
    return LONG if number % 32 == 9 else "" if number % 16 == 5 else TEXTS[number % 3]


@pytest.fixture
def run(tmp_path):
    """Starts the script in a folder with a checkpoint and 1,600 rows."""
    pytest.importorskip("ray", reason="ray isn't installed: pip install 'hf-posenc[ray]'")
    checkpoint(tmp_path / "model", **LABELS)
    texts = [text_of(number) for number in range(ROWS)]
    table = pa.table({"id": pa.array(range(ROWS), pa.int32()), "text": texts, "label": ["old"] * ROWS})
    (tmp_path / "texts.v2").mkdir()
    pq.write_table(table, tmp_path / "texts.v2" / "part.parquet")

    def start(*options):
        # Ray's own files are the test's: a killed run's would be taken for a running cluster.
        environment = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}
        words = ["--checkpoint", "model", "--input", "texts.v2", "--output", "labelled", "--batch-size", "2"]
        command = [sys.executable, str(SCRIPT), *words, *options]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def rows_in(folder):
    try:
        return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
    except (OSError, pa.ArrowInvalid):  # one is being written
        return 0


def actors_of(process):
    import psutil

    names = ((child, " ".join(child.cmdline())) for child in psutil.Process(process.pid).children(recursive=True))
    return [child for child, name in names if "Labeller" in name]


@pytest.mark.slow  # Ray, and three processes that import PyTorch
def test_every_row_is_labelled_once_though_an_actor_dies(run, tmp_path):
    process, staging, killed = run("--actors", "2"), tmp_path / "labelled" / ".posenc.writing", None
    deadline = time.monotonic() + 300
    while process.poll() is None and killed is None and time.monotonic() < deadline:
        if rows_in(staging) and len(actors := actors_of(process)) == 2:
            before, killed = rows_in(staging), actors[0]
            killed.kill()
        time.sleep(0.02)
    try:
        out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert killed is not None
    assert 0 < before <= ROWS - 3 * BLOCK  # there was work left
    assert not killed.is_running()
    assert f"1,600 rows of texts.v2 are in {tmp_path / 'labelled'}: 2 actors, torch" in out
    assert re.search("Warning: 50 texts have more than .* tokens, and only so many were read.\n", out)
    assert "Warning: texts.v2: 100 empty, and answered all the same: such an answer means nothing.\n" in out
    assert not staging.exists()
    assert (tmp_path / "labelled" / "_files.json").is_file()
    labelled = pq.read_table(tmp_path / "labelled").sort_by("id")
    assert labelled["id"].to_pylist() == list(range(ROWS))
    assert labelled.schema.field("id").type == pa.int32()
    assert set(labelled["input_label"].to_pylist()) == {"old"}
    model = hf_posenc.load(tmp_path / "model")
    asked = [*TEXTS[:3], LONG, ""]
    with pytest.warns(UserWarning, match="1 text has more|1 empty"):
        labels, shares = model.predict(asked), model.predict_proba(asked)
    for row in labelled.to_pylist():
        number = asked.index(text_of(row["id"]))
        assert (row["text"], row["label"]) == (asked[number], labels[number])
        assert (row["truncated"], row["empty"]) == (number == 3, number == 4)
        assert [row[f"probability_{label}"] for label in model.classes_] == pytest.approx(shares[number], abs=1e-5)
