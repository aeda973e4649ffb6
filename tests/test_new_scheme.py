"""A new built-in scheme is one file, one place in the table and one reference: everything else finds it there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hf_posenc.schemes.conformance import SCHEME_CHECKS

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow

SCHEME = '''"""`inverse`: a bias that falls with the inverse of the distance."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .position_distance import DistanceBias


class InversePosition(DistanceBias):
    """Inverse of the distance: b_h(i, j) = w_h / (1 + |i - j|) to the left, v_h / (1 + |i - j|) to the right.

    Doe et al. 2031, "Inverses", arXiv 3101.00001.

    Costs one (H, S, S) bias per forward; 2 H weights; takes any length.

    Args:
        num_heads (int): H.
    """

    name = "inverse"
    learning_rate_factor = 30.0

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
REFERENCE = """
def inverse(scheme) -> Reference:
    sides = scheme.sides.weight.to(f64)
    return Reference(bias=lambda p: pairs(p, sides.shape[1], lambda h, i, j: sides[int(j > i), h] / (1 + abs(i - j))))


REFERENCES: dict"""
EDITS = {
    "hf_posenc/model/scheme_table.py": (
        ("from .position_kerple", "from .position_inverse import InversePosition\nfrom .position_kerple"),
        ('    "deberta": DebertaPosition,\n', '    "deberta": DebertaPosition,\n    "inverse": InversePosition,\n'),
    ),
    "tests/references.py": (
        ("\nREFERENCES: dict", REFERENCE),
        ('    "deberta": deberta,\n', '    "deberta": deberta,\n    "inverse": inverse,\n'),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the checkout with the scheme in it."""
    tree = tmp_path_factory.mktemp("tree") / "hf_posenc"
    for name in ("hf_posenc", "tests", "model_cards", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    (tree / "hf_posenc/model/position_inverse.py").write_text(SCHEME)
    for name, changes in EDITS.items():
        text = (tree / name).read_text()
        for old, new in changes:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (tree / name).write_text(text)
    return tree


@pytest.fixture(scope="module")
def run(tree):
    """Runs Python in the copy, and returns what it printed."""

    def run(*words, folder):
        paths = os.pathsep.join(map(str, (tree, tree / "tests", tree / "tests/conversion")))
        command, env = [sys.executable, *map(str, words)], {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
        done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return run


def test_the_tests_hold_it_to_its_reference(run, tree):
    chosen = ("test_schemes.py", "test_encoder.py")
    options = ("-q", "-n0", "-k", "inverse", "-m", "not slow", "-p", "no:cacheprovider")
    files = [path for name in chosen for path in sorted((tree / "tests").rglob(name))]
    assert len(files) == len(chosen)
    output = run("-m", "pytest", *options, *files, folder=tree)
    assert "passed" in output.splitlines()[-1]


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


def test_it_passes_every_check_and_tables_cards_and_pictures_have_it(run, tmp_path):
    pytest.importorskip("matplotlib")
    printed = run("-c", ASKED, folder=tmp_path)
    assert f"{len(SCHEME_CHECKS)} of {len(SCHEME_CHECKS)} checks ran" in printed
    assert f"{len(SCHEME_CHECKS)} passed" in printed
    assert printed.count("| `inverse` | inverse of the distance |") == 2
    card = (tmp_path / "inverse.md").read_text()
    assert "| acts on | attention logits" in card
    assert "TO BE WRITTEN" in card
    assert "`b_h(i, j) = w_h / (1 + |i - j|) to the left, v_h / (1 + |i - j|) to the right`" in card
    assert "https://arxiv.org/abs/3101.00001" in card
    assert (tmp_path / "pictures/inverse.png").stat().st_size > 10_000
