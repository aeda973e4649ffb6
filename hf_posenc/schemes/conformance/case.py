"""Shared by the checks: a scheme inside tiny encoders, texts, comparisons, verdicts."""

import copy
import functools
import math
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError, one_line
from ...model.configuration_posenc import PosEncConfig
from ...model.modeling_posenc import PosEncForSequenceClassification
from ...model.scheme_base import PositionScheme
from ...model.scheme_table import SCHEMES


class Failure(Exception):
    """The check failed, as opposed to an error inside the scheme."""


class Skip(Exception):
    """The check doesn't apply."""


def describe(error: Exception) -> str:
    """An error inside the scheme or the encoder: what it is, and the last place outside torch where it happened."""
    if isinstance(error, Failure):
        return str(error)
    places = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent != Path(__file__).parent
        and f"{os.sep}site-packages{os.sep}" not in frame.filename
    ]
    place = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    text = one_line(error).rstrip(".")
    if len(text) > 300 and not isinstance(error, ValueError):  # PyTorch's can be pages, ours say what to do
        text = f"{text[:300]}..."
    return f"{type(error).__name__}: {text}{place}"


SAME, DIFFERENT = 1e-5, 1e-3
"""Hidden states are about 1. Float32 sums in another order differ by less than 1e-5, positions have larger effects."""

CHECKED_LENGTH = 32


def draw_tokens(*shape: int, seed: int = 1) -> Tensor:
    """Random token ids of the tiny encoder."""
    return torch.randint(1, 101, shape, generator=torch.Generator().manual_seed(seed))


SEQUENCES = [draw_tokens(length, seed=length) for length in (9, 1, 4, 6)]


@dataclass
class Case:
    """A scheme under test, and the tiny encoders around it."""

    name: str
    declared_name: str | None
    kwargs: dict[str, Any]

    def config(self, **overrides: Any) -> PosEncConfig:
        """The tiny encoder's config, with fields that replace these."""
        values = {
            "vocab_size": 101,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "hidden_dropout_prob": 0.0,
            "max_position_embeddings": 128,
            "num_labels": 3,
            "position_embedding_type": self.name,
            "position_embedding_kwargs": copy.deepcopy(self.kwargs) or None,
        }
        return PosEncConfig(**{**values, **overrides})

    def classifier(self, **overrides: Any) -> PosEncForSequenceClassification:
        """A classifier in evaluation mode with every weight moved: weights of zero would look order-blind."""
        torch.default_generator.manual_seed(0)
        model = PosEncForSequenceClassification(self.config(**overrides))
        limit = model.model.position.max_length
        if limit is not None and limit < CHECKED_LENGTH:
            raise UserError(
                f"max_length={limit} is too short for the checks, which use {CHECKED_LENGTH} tokens. Give the argument "
                "in scheme_kwargs that sets it, or read it from max_positions, which is 128 here."
            )
        perturb(model)
        return model.eval()

    @functools.cached_property
    def position(self) -> PositionScheme:
        """A scheme to read declarations from; the checks use those of their own models."""
        return self.classifier().model.position

    @property
    def classes(self) -> list[type[PositionScheme]]:
        """The scheme's class, or those of a combination."""
        return [SCHEMES[part] for part in self.name.split("+")]

    def longest(self, wanted: int) -> int:
        """A length in tokens: as wanted, or as the scheme has positions."""
        return wanted if self.position.max_length is None else min(wanted, self.position.max_length)

    @property
    def sequences(self) -> list[Tensor]:
        """Short ones, and one that is longer than windows, blocks and tables usually are."""
        return [*SEQUENCES, draw_tokens(self.longest(80), seed=80)]


def perturb(model: nn.Module, std: float = 0.2) -> nn.Module:
    """Moves every weight in place, so that nothing looks order-blind or equal because it is still zero or one."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.add_(std * noise.to(parameter.dtype))
    return model


def pad_batch(sequences: Sequence[Tensor], side: str = "right", extra: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids (B, S) and their mask; `extra` more places than the longest sequence needs."""
    length = max(map(len, sequences)) + extra
    ids = torch.zeros(len(sequences), length, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        place = slice(0, len(sequence)) if side == "right" else slice(length - len(sequence), length)
        ids[row, place] = sequence
        mask[row, place] = 1
    return ids, mask


def hidden_alone(encoder: nn.Module, sequences: Sequence[Tensor], start: int = 0) -> list[Tensor]:
    """Hidden states (S, D) of each sequence in a batch of its own, at positions from `start` on."""
    ids = ((sequence[None], torch.arange(start, start + len(sequence))[None]) for sequence in sequences)
    return [encoder(i, position_ids=p).last_hidden_state[0] for i, p in ids]


def largest_difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference; infinite where one is NaN or alone infinite."""
    if got.shape != expected.shape:
        raise Failure(f"the shape is {tuple(got.shape)} instead of {tuple(expected.shape)}.")
    difference = (got.double() - expected.double()).abs().masked_fill(got == expected, 0.0)
    return float(difference.nan_to_num(nan=math.inf).max())


def require_same(got: Tensor, expected: Tensor, what: str, cause: str, most: float = SAME) -> None:
    """A `Failure` where two tensors differ by more than `most`: what, by how much, and what usually causes it."""
    difference = largest_difference(got, expected)
    if not difference <= most:
        measured = "not all numbers are finite" if difference == math.inf else f"they differ by {difference:.1e}"
        raise Failure(f"{what}: {measured}, allowed is {most:g}. {cause}")


HOOKS = ("embed", "rotary", "rotate", "bias", "layer_bias")


def watch(scheme: PositionScheme, saw: Callable[[str, tuple[Any, ...], Any], None]) -> None:
    """Calls `saw(hook, arguments, result)` whenever the encoder calls a hook of this scheme."""

    def watched(hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            saw(hook, arguments, result)
            return result

        return call

    for hook in HOOKS:
        setattr(scheme, hook, watched(hook, getattr(scheme, hook)))
