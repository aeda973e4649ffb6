"""Describes schemes in numbers."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..model.configuration_posenc import PosEncConfig
from ..model.scheme_factory import make_scheme
from ..model.scheme_table import SCHEMES


@dataclass(frozen=True)
class SchemeSummary:
    """One row of `hf-posenc schemes`."""

    name: str
    summary: str
    parameters: int
    """At base size: 12 layers, D = 768, 12 heads, 512 positions."""
    max_length: int | None
    cost: str


def describe_schemes() -> list[SchemeSummary]:
    """Describes every scheme of the table, from its class."""
    rows = []
    for name, scheme in SCHEMES.items():
        with torch.device("meta"):
            position = make_scheme(PosEncConfig.from_size("base", position_embedding_type=name))
        paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(scheme.__doc__ or "").split("\n\n")]
        cost = next((part for part in paragraphs if part.startswith("Cost")), "")
        rows.append(
            SchemeSummary(
                name=name,
                summary=re.split(r": | \(|\. |\.$", paragraphs[0])[0],
                parameters=sum(parameter.numel() for parameter in position.parameters()),
                max_length=position.max_length,
                cost=re.sub(r"^Costs,? ", "", re.split(r"[;.] |\.$", cost)[0]),
            )
        )
    return rows


def position_rates(config: Any) -> dict[str, float]:
    """The multiple of the encoder's learning rate at which each part of a scheme that has weights learns, by its name.

    Args:
        config: of a model with the scheme.
    """
    with torch.device("meta"):
        position = make_scheme(config)
    parts = getattr(position, "parts", {config.position_embedding_type: position})
    return {name: part.position_rate for name, part in parts.items() if any(True for _ in part.parameters())}


def rates_in_words(rates: Mapping[str, float]) -> str:
    """The parts that learn at another rate than the encoder, such as `30 times for alibi, t5`; empty if none does."""
    names: dict[float, list[str]] = {}
    for name, rate in rates.items():
        names.setdefault(rate, []).append(name)
    return "; ".join(f"{rate:g} times for {', '.join(names[rate])}" for rate in sorted(names) if rate != 1)
