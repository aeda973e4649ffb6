"""Every code block of the README runs, and prints what stands below it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, flags=re.DOTALL)


def test_every_python_block_has_its_output_below():
    assert len(EXAMPLES) == README.count("```python\n") >= 3


@pytest.mark.parametrize(("code", "output"), EXAMPLES, ids=[code.split("\n")[2] for code, _ in EXAMPLES])
def test_python_blocks_print_what_stands_below_them(code, output, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_make_targets_in_the_documents_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"^make ([a-z-]+)", (ROOT / document).read_text(), flags=re.MULTILINE))
        assert named
        assert named <= targets


def test_the_table_of_schemes_names_every_scheme():
    from common import SCHEMES

    for scheme in SCHEMES:
        assert f"| `{scheme}` |" in README
