"""This machine: its processor, the versions of its packages, the commit of this code."""

import contextlib
import functools
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def processor() -> str:
    """The processor's name, with the family and model that tell its generation, where the system says them."""
    with contextlib.suppress(OSError, KeyError):
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
        facts = {name.strip(): value.strip() for name, _, value in reversed(lines)}
        return f"{facts['model name']} (family {facts['cpu family']}, model {facts['model']})"
    return platform.processor() or platform.machine()


@functools.cache
def versions() -> dict[str, str]:
    """The versions that a result depends on, of the packages that are installed."""
    numbers = {"python": platform.python_version()}
    for package in ("hf-posenc", "transformers", "torch", "tokenizers", "datasets", "accelerate"):
        with contextlib.suppress(PackageNotFoundError):
            numbers[package] = version(package)
    return numbers


@functools.cache
def commit(folder: Path = Path(__file__).parent) -> str | None:
    """The commit of the code in a folder, with `-dirty` where tracked files have changed; None: in no repository."""

    def git(*words: str) -> str:
        command = ("git", "-C", str(folder), *words)
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()

    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        if git("ls-files", "__init__.py"):  # else it is installed in a folder of another repository
            return git("rev-parse", "HEAD") + ("-dirty" if git("status", "-s", "-uno") else "")
    return None
