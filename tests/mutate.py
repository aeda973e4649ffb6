"""Plants the faults of `mutations.txt` one by one in a copy of the package: `python tests/mutate.py [words]`.

Each must make its tests fail; a fault that they miss is named at the end. With words, only lines that hold them.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent


class Mutation(NamedTuple):
    """A line of the list."""

    file: str
    old: str
    new: str
    tests: str


def mutations() -> list[Mutation]:
    """All lines of the list."""
    lines = (ROOT / "tests/mutations.txt").read_text(encoding="utf-8").splitlines()
    return [Mutation(*line.split(" :: ")) for line in lines if not line.startswith("#")]


def is_caught(mutation: Mutation, folder: Path) -> bool:
    """Whether some of its tests fail with it in the copy."""
    path = folder / mutation.file
    sound = path.read_text(encoding="utf-8")
    path.write_text(sound.replace(mutation.old, mutation.new), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
    try:
        done = subprocess.run(
            [*words, *shlex.split(mutation.tests)],  # which may ask for slow tests: the last -m counts
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(sound, encoding="utf-8")
    return done.returncode == 1  # above 1: no test was selected, or pytest itself failed


def main() -> None:
    """Plants them."""
    chosen = [mutation for mutation in mutations() if all(word in " :: ".join(mutation) for word in sys.argv[1:])]
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("hf_posenc", "tests", "examples", "model_cards", "docs"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / part, folder / part)
        for mutation in (bar := tqdm(chosen, unit="fault")):
            if not is_caught(mutation, folder):
                missed.append(mutation)
                bar.write(f"Missed: {' :: '.join(mutation)}")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults are caught.")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
