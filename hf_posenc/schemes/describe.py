"""Describes schemes in numbers."""

import inspect
import re
from dataclasses import dataclass

import torch

from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.scheme_factory import make_scheme
from hf_posenc.model.scheme_table import SCHEMES


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
            position = make_scheme(PosEncConfig.from_preset("base", position_embedding_type=name))
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
