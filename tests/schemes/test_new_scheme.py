"""A new built-in scheme is one file and one place in the table: everything else finds it there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hf_posenc import SCHEME_CHECKS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

SCHEME = '''"""`inverse`: a bias that falls with the inverse of the distance."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .scheme_distance import DistanceBias


class InversePosition(DistanceBias):
    """Inverse of the distance: b_h(i, j) = w_h / (1 + |i - j|) to the left, v_h / (1 + |i - j|) to the right.

    Doe et al. 2031, "Inverses", arXiv 3101.00001.

    Costs one (H, S, S) bias per forward; 2 H weights; takes any length.

    Args:
        num_heads (int): H.
    """

    name = "inverse"
    position_rate = 30.0

    def __init__(self, *, num_heads: int) -> None:
        super().__init__()
        self.sides = nn.Embedding(2, num_heads)

    def of_distance(self, distance: Tensor, layer: int) -> Tensor:
        """The inverse, float32: (R,) -> (R, H)."""
        return self.sides((distance > 0).long()).float() / (1 + distance.abs()).unsqueeze(-1)

    def init_weights(self, std: float) -> None:
        """w = 1, v = 2."""
        init.copy_(self.sides.weight, torch.tensor([[1.0], [2.0]]).expand_as(self.sides.weight))
'''
EDITS = (
    ("from .position_kerple", "from .position_inverse import InversePosition\nfrom .position_kerple"),
    ('    "deberta": DebertaPosition,\n', '    "deberta": DebertaPosition,\n    "inverse": InversePosition,\n'),
)
ASKED = """
import contextlib, sys
from hf_posenc.cli import main
from model_cards import make_cards, make_pages
with contextlib.suppress(SystemExit):
    sys.argv = ["hf-posenc", "check", "inverse"]
    main()
print(make_pages.short_table(), make_pages.scheme_table())
make_cards.write_cards(".", ["inverse"])
"""


def test_checks_tables_cards_and_pictures_find_it(tmp_path):
    pytest.importorskip("matplotlib")
    tree = tmp_path / "tree"
    for name in ("hf_posenc", "model_cards", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    (tree / "hf_posenc/model/position_inverse.py").write_text(SCHEME)
    table = tree / "hf_posenc/model/scheme_table.py"
    for old, new in EDITS:
        assert table.read_text().count(old) == 1, old
        table.write_text(table.read_text().replace(old, new))
    env = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", ASKED], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"{len(SCHEME_CHECKS)} of {len(SCHEME_CHECKS)} checks ran" in done.stdout
    assert f"{len(SCHEME_CHECKS)} passed" in done.stdout
    assert done.stdout.count("| `inverse` | inverse of the distance |") == 2
    card = (tmp_path / "inverse.md").read_text()
    assert "| acts on | attention logits" in card
    assert "TO BE WRITTEN" in card
    assert "$$\nb_{h}(i,\\ j) = " in card
    assert "https://arxiv.org/abs/3101.00001" in card
    assert (tmp_path / "pictures/inverse.png").stat().st_size > 10_000
