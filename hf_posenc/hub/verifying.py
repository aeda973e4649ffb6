"""Verifies a commit: downloads it, and loads it in a separate process without a token."""

import os
from pathlib import Path

import torch
from huggingface_hub import HfApi

from hf_posenc.errors import UserError
from hf_posenc.files import sha256
from hf_posenc.isolated_load import Answer, load_isolated

from .collecting import TEXT, Checkpoint

_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_THREADING_LAYER", "KMP_DUPLICATE_LIB_OK"),
    *("SYSTEMROOT", "TEMP", "TMP", "USERNAME", "PROCESSOR_ARCHITECTURE"),  # Windows
)
"""The environment variables that Python and PyTorch need. Others aren't passed on: they may hold a password."""


def verify(api: HfApi, repo_id: str, revision: str, sent: Checkpoint, place: Path) -> None:
    """Downloads a commit into an empty cache in `place`, and loads it without hf_posenc, network or token.

    Raises:
        UserError: a file, a weight, the output or the token ids aren't those that were sent.
        IsolatedLoadFailed: it can't be loaded.
    """
    for name in sent.files:
        path = api.hf_hub_download(repo_id, name, revision=revision, cache_dir=place / "cache")
        if sha256(path) != sha256(sent.folder / name):
            raise UserError(f"{name} isn't the file that was sent: its sha256 differs. Run it again.")
    answer = load_isolated(
        place,
        repo_id,
        sent.auto_class,
        texts=None if sent.token_ids is None else [TEXT],
        inputs={"input_ids": sent.input_ids},
        environment=environment(place),
        options={"revision": revision, "code_revision": revision},
    )
    if difference := _difference(answer, sent):
        raise UserError(f"loading it back failed: {difference}.")


def _difference(answer: Answer, sent: Checkpoint) -> str | None:
    """The first difference from what was sent, or None."""
    weights = sent.model.state_dict()
    if other := sorted(answer.weights.keys() ^ weights.keys()):
        return f"the weight {other[0]} is only in one of them"
    for name, value in weights.items():
        loaded = answer.weights[name]
        if loaded.dtype != value.dtype or not torch.equal(loaded, value):
            return f"the weight {name} differs"
    atol = 1e-5 * max(1.0, float(sent.output.abs().max()))  # a regression's numbers may be in the thousands
    if answer.output.shape != sent.output.shape or not torch.allclose(answer.output, sent.output, atol=atol):
        return "with the same weights and input it gives another output"
    if sent.token_ids is not None and answer.token_ids != [sent.token_ids]:
        return f"the tokenizer reads {TEXT!r} differently"
    return None


def environment(place: Path) -> dict[str, str]:
    """The environment of the loading process: a home without a token, and a cache in place of the Hub."""
    home = str(place / "home")
    settings = {"HOME": home, "USERPROFILE": home, "HF_HOME": home, "HF_HUB_CACHE": str(place / "cache")}
    settings |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | settings
