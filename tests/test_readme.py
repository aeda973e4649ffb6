"""Every code block of the README runs, and prints what stands below it."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", README, flags=re.DOTALL)


def test_every_python_block_has_its_output_below():
    # The one block without output loads what the command above it trained.
    assert len(EXAMPLES) == README.count("```python\n") - 1 >= 3


def test_the_training_commands_work_as_written(tmp_path):
    commands = [line.split("  #")[0] for line in README.splitlines() if line.startswith("hf-posenc ")]
    commands = [command for command in commands if command.split()[1] != "plot"]  # run in test_plots.py
    assert [command.split()[1] for command in commands] == ["train", "evaluate", "predict"]
    rows = "".join(f"{text},{label}\n" for text, label in (("good film", "yes"), ("bad film", "no")) * 20)
    for name in ("mine.csv", "test.csv"):
        (tmp_path / name).write_text("text,label\n" + rows)
    folder = Path(sys.executable).parent
    for command in commands:
        script, *arguments = shlex.split(command)
        done = subprocess.run([folder / script, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["label"] in ("yes", "no")
    block = re.search(r"```python\n(from transformers import pipeline.*?)```", README, flags=re.DOTALL).group(1)
    code = block + 'print(classify("good film")[0]["label"])'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() in ("yes", "no"), done.stderr


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


def test_the_quick_start_table_is_what_was_measured():
    measured = json.loads((ROOT / "model_cards/results/quickstart.json").read_text())
    assert len(measured.pop("seeds")) == 5
    measured.pop("options")
    assert measured["none"]["max"] < 0.52
    assert measured["rope"]["min"] > 0.9
    for scheme, found in measured.items():
        numbers = " | ".join(f"{found[name]:.3f}" for name in ("mean", "std", "min", "max"))
        assert f"| `{scheme}` | {numbers} |" in README
