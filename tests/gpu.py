"""On a GPU machine: the tests marked `gpu`, then the benchmark and its targets. `python tests/gpu.py`.

Needs torch and transformers alone, installs nothing and uses no network.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHMARK = ["-m", "model_cards.benchmark.targets", "-o", "model_cards/results/benchmark_gpu.json"]
NEED_MORE = {"tests/training": ("accelerate", "datasets", "evaluate", "sklearn")}
"""Folders whose tests import more than torch, transformers, pytest and hf_posenc."""


def missing(*packages: str) -> list[str]:
    """Those that aren't installed."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def pytest_arguments() -> list[str]:
    """Arguments of Python for the tests marked `gpu`, of files that can be imported; says what is skipped, and why."""
    if missing("pytest"):
        print("Skipped all tests: pytest isn't installed.", flush=True)
        return []
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    files = [file for file in files if "pytest.mark.gpu" in (ROOT / file).read_text(encoding="utf-8")]
    for folder, packages in NEED_MORE.items():
        if absent := missing(*packages):
            for file in (file for file in files if file.startswith(folder)):
                print(f"Skipped {file}: it needs {', '.join(absent)}, not installed here.", flush=True)
            files = [file for file in files if not file.startswith(folder)]
    return ["-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *files]


def main() -> None:
    """Runs both; the exit code is 0 if all tests and targets pass."""
    commands = [pytest_arguments(), BENCHMARK]
    codes = [subprocess.run([sys.executable, *words], cwd=ROOT, check=False).returncode for words in commands if words]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
