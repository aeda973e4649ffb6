"""Runs the notebooks of docs/tutorials, which are written as scripts with cells, and keeps them with their output.

python -m model_cards.make_notebooks
"""

import os
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

from hf_posenc.files import write_text
from model_cards.studies.parts import find_minilm

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"


def run(script: Path) -> Any:
    """The notebook that a script is, with what each cell shows."""
    notebook = jupytext.read(script)
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(script.parent)}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # else each run has others
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]  # progress
    return notebook


def main() -> None:
    """The command."""
    os.environ["HF_POSENC_MINILM"] = str(find_minilm(None))
    for script in sorted(FOLDER.glob("*.py")):
        print(script.stem, flush=True)
        write_text(script.with_suffix(".ipynb"), nbformat.writes(run(script)) + "\n")


if __name__ == "__main__":
    main()
