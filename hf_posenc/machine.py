"""This machine: its processor, the versions of its packages, the commit of this code."""

import contextlib
import functools
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


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


def short_commit() -> str:
    """The first twelve letters of this code's commit, with `-dirty` where there is; empty in no repository."""
    digest, dash, state = (commit() or "").partition("-")
    return digest[:12] + dash + state


_OF_A_WEIGHT = 16
"""Bytes: a trained weight, its gradient and AdamW's two averages, in float32."""
_OF_A_TOKEN = (83, 8)
"""Bytes that a layer keeps of a token for the way back, for each of `hidden_size` and of `intermediate_size`."""
_OF_A_PAIR = 14
"""Bytes of a pair of tokens and head in a layer, where no fused kernel can be taken."""


def step_bytes(model: Any, lengths: Sequence[int]) -> tuple[int, int]:
    """The memory of a step in float32, in bytes: of the weights, and of the tokens of its texts.

    A layer keeps 83 D + 8 I bytes of a token (D `hidden_size`, I `intermediate_size`), and 14 H L of one in a text of L
    tokens (H heads) where attention has dropout or logits of its own by layer: then no fused kernel trains. A bias for
    all layers takes as much once, of the longest text. Measured within 15 % on a CPU at 128, 512 and 1,500 tokens, 384
    and 768 wide, with `rope`; within 30 % with a bias of distance; mixed precision takes less.

    Args:
        model: what is trained.
        lengths: the tokens of each text of the step.
    """
    config, scheme = model.config, model.base_model.position
    tokens, pairs, of_a_pair = sum(lengths), sum(n * n for n in lengths), config.num_attention_heads * _OF_A_PAIR
    of_a_layer = tokens * (_OF_A_TOKEN[0] * config.hidden_size + _OF_A_TOKEN[1] * config.intermediate_size)
    if config.attention_probs_dropout_prob or scheme.uses("layer_bias"):
        of_a_layer += pairs * of_a_pair
    once = max(lengths) ** 2 * of_a_pair if scheme.uses("bias") else 0
    trained = model.num_parameters(only_trainable=True)
    weights = _OF_A_WEIGHT * trained + 4 * (model.num_parameters() - trained)
    return weights, of_a_layer * config.num_hidden_layers + once
