"""Verifies a commit: downloads it, and loads it in a process of its own that has no token."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from safetensors.torch import save_file

from hf_posenc.errors import UserError, one_line

_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_THREADING_LAYER", "KMP_DUPLICATE_LIB_OK"),
    *("SYSTEMROOT", "TEMP", "TMP", "USERNAME", "PROCESSOR_ARCHITECTURE"),  # Windows
)
"""The environment variables that Python and PyTorch need. No others are passed on: they may hold a password."""


def download(api: HfApi, repo_id: str, revision: str, folder: Path, names: tuple[str, ...], cache: Path) -> None:
    """Downloads files of a commit into an empty cache.

    Raises:
        UserError: one differs from that of `folder`.
    """
    for name in names:
        path = Path(api.hf_hub_download(repo_id, name, revision=revision, cache_dir=cache))
        if sha256(path) != sha256(folder / name):
            raise UserError(f"{name} isn't the file that was sent: its sha256 differs. Run it again.")


def load_back(place: Path, order: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Loads the commit from the cache in `place`, without hf_posenc, network or token, and compares.

    Args:
        place: a temporary folder.
        order: see stranger.py.
        tensors: what the author's model has and gives.

    Raises:
        UserError: it can't be loaded, or is different.
    """
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, place / "tensors")
    (place / "order.json").write_text(json.dumps({**order, "tensors": str(place / "tensors")}), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-X", "utf8", str(Path(__file__).with_name("stranger.py")), str(place / "order.json")],
        cwd=place,
        env=environment(place),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    try:
        error = json.loads(done.stdout.splitlines()[-1])["error"]
    except (IndexError, ValueError):
        error = f"the process that loads it ended with {done.returncode}: {one_line(Exception(done.stderr[-500:]))}"
    if error is not None:
        raise UserError(f"loading it back failed: {error}. Run it again.")


def environment(place: Path) -> dict[str, str]:
    """The environment of the loading process: a home without a token, and a cache in place of the Hub."""
    home = str(place / "home")
    told = {"HOME": home, "USERPROFILE": home, "HF_HOME": home, "HF_HUB_CACHE": str(place / "cache")}
    told |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | told


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
