"""The suite notices what silently corrupts remote-code encoders: each mistake is made in a copy of the package."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
from remote_code_harness import CODE, HEAD

pytestmark = pytest.mark.slow

# What each copy of the package has to pass: a handful of this folder's own tests.
SELECTED = f"({HEAD} and (nobody_wrote or makes_up_a_model)) or sdpa_and_eager or sees_the_word_order"


@dataclass(frozen=True)
class Mutant:
    """A mistake in one file, the scheme that it concerns, and the tests that must notice it."""

    file: str
    old: str
    new: str
    scheme: str
    noticed_by: frozenset[str]
    guard: tuple[str, str, str] | None = None
    """File, text, replacement: what would refuse the mistake outright is taken out, for the suite must see it too."""


MUTANTS = {
    # Kept in a buffer that isn't saved, the table is whatever was in memory when a checkpoint is loaded.
    "a table not re-initialised after load": Mutant(
        "position_sinusoidal.py",
        '        self.hidden_size = require("hidden_size", hidden_size, whole())\n',
        '        self.hidden_size = require("hidden_size", hidden_size, whole())\n'
        "        import torch\n"
        "        self.register_buffer('table', sinusoid(torch.arange(512), hidden_size, base), persistent=False)\n"
        "        self.encodings = lambda positions: self.table[positions] * self.scale\n",
        "sinusoidal",
        frozenset(
            {
                f"test_memory_that_nobody_wrote_to_is_never_read[sinusoidal-{HEAD}]",
                f"test_nothing_but_weights_makes_up_a_model[sinusoidal-{HEAD}]",
            }
        ),
        (
            "positions.py",
            "if buffer := next((buffer for buffer, _ in built.named_buffers()), None):",
            "if buffer := None:",
        ),
    ),
    # Built on the meta device and moved nowhere, the constant has no numbers at all.
    "a constant kept as a plain tensor attribute": Mutant(
        "position_rope.py",
        "        self.interleaved = interleaved\n",
        "        self.interleaved = interleaved\n"
        "        theta = torch.tensor(self.rope_theta)\n"
        "        steps = torch.arange(0, self.rotary_dim, 2) / self.rotary_dim\n"
        "        frequencies = theta ** -steps\n"
        "        def angles(positions, lengths=None):\n"
        "            angle = positions.float().unsqueeze(-1) * frequencies\n"
        "            angle = torch.cat((angle, angle), -1)\n"
        "            return torch.cat((angle.cos(), angle.sin()), -1)\n"
        "        self.cos_sin = angles\n",
        "rope",
        frozenset(
            {
                f"test_memory_that_nobody_wrote_to_is_never_read[rope-{HEAD}]",
                f"test_nothing_but_weights_makes_up_a_model[rope-{HEAD}]",
                "test_sdpa_and_eager_attention_give_the_same_outputs[rope]",
                "test_every_attention_backend_sees_the_word_order[rope-sdpa]",
                "test_every_attention_backend_sees_the_word_order[rope-eager]",
            }
        ),
    ),
    "a scheme ignored under sdpa": Mutant(
        "attention.py",
        '        if scheme.uses("rotate"):\n',
        "        if scheme.uses('rotate') and module.config._attn_implementation != 'sdpa':\n",
        "rope",
        frozenset(
            {
                "test_sdpa_and_eager_attention_give_the_same_outputs[rope]",
                "test_every_attention_backend_sees_the_word_order[rope-sdpa]",
            }
        ),
    ),
}
UNCHANGED = "the package as it is"


def run_suite(package: Path) -> tuple[set[str], set[str]]:
    """The names of the selected tests that pass and that fail with this copy of the package."""
    report = package.parent / "report.xml"
    options = ["-p", "no:cacheprovider", "-k", SELECTED, f"--junitxml={report}", f"--basetemp={package.parent / 'tmp'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(Path(__file__).with_name("test_remote_memory.py"))],
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert f"hf_posenc under test: {package / '__init__.py'}" in done.stdout, done.stdout + done.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {case.attrib["name"] for case in cases if len(case)}
    return {case.attrib["name"] for case in cases} - failed, failed


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[set[str], set[str]]]:
    packages: dict[str, Path] = {}
    for name in (UNCHANGED, *MUTANTS):
        packages[name] = tmp_path_factory.mktemp("mutant") / "hf_posenc"
        shutil.copytree(CODE.parent, packages[name], ignore=shutil.ignore_patterns("__pycache__"))
    for name, mutant in MUTANTS.items():
        for name_of_file, old, new in filter(None, [(mutant.file, mutant.old, mutant.new), mutant.guard]):
            file = packages[name] / "model" / name_of_file
            source = file.read_text()
            assert source.count(old) == 1, f"{name_of_file} has changed: give this mutant another place"
            file.write_text(source.replace(old, new))
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(packages, pool.map(run_suite, packages.values()), strict=True))


def test_the_package_as_it_is_passes(results: dict[str, tuple[set[str], set[str]]]) -> None:
    passed, failed = results[UNCHANGED]
    assert failed == set()
    assert passed > frozenset().union(*(mutant.noticed_by for mutant in MUTANTS.values()))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_suite_fails_on(results: dict[str, tuple[set[str], set[str]]], name: str) -> None:
    mutant, failed = MUTANTS[name], results[name][1]
    assert failed >= mutant.noticed_by
    # The other schemes aren't touched: it is the mistake that is noticed, and not just a broken copy.
    assert all(f"[{mutant.scheme}-" in test or f"[{mutant.scheme}]" in test for test in failed)
