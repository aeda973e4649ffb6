"""The summary of a run, which it begins with: sizes of model and data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn
from transformers import PreTrainedModel

from ..data.labels import Labels
from ..data.summary import DataSummary
from ..model.configuration_posenc import PosEncConfig


@dataclass(frozen=True)
class Summary:
    """Sizes of a run, known before its first step."""

    model: str
    position_embedding_type: str | None
    problem_type: str
    labels: tuple[str, ...]
    label_mean: float
    """Of the numbers that a regression was trained on; 0 and a `label_scale` of 1: they aren't standardised."""
    label_scale: float
    examples: dict[str, int]
    max_length: int
    vocab_size: int
    parameters: int
    positional_parameters: int
    tokens: int
    """Real tokens of one epoch."""
    padded_tokens: int
    """Places of one epoch's padded batches, real tokens included."""
    data: DataSummary | None = None
    """What was read, used, left out and set aside."""

    @property
    def positional_share(self) -> float:
        """Share of the parameters that belong to the positions."""
        return self.positional_parameters / max(self.parameters, 1)

    @property
    def padding_share(self) -> float:
        """Share of the places in padded batches that hold no token."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, shares included."""
        data = None if self.data is None else self.data.to_dict()
        return {
            **asdict(self),
            "data": data,
            "positional_share": self.positional_share,
            "padding_share": self.padding_share,
        }

    def show(self, console: Console | None = None) -> None:
        """Prints the summary as a table."""
        console = console or Console()
        if self.data is not None:
            console.print(f"[bold]Data[/bold]  {escape(self.data.line())}", highlight=False)
            for doubt in self.data.doubts():
                console.print(f"[yellow]Warning:[/yellow] {escape(doubt)}", highlight=False)
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        scheme = f", positions: {self.position_embedding_type}" if self.position_embedding_type else ""
        table.add_row("Model", f"{self.model}{scheme}")
        table.add_row(
            "Parameters",
            f"{self.parameters:,}, of them positional {self.positional_parameters:,} ({self.positional_share:.2%})",
        )
        shown = ", ".join(self.labels[:8]) + (f", ... ({len(self.labels)})" if len(self.labels) > 8 else "")
        if (self.label_mean, self.label_scale) != (0.0, 1.0):
            shown = f"targets standardised: mean {self.label_mean:.6g}, standard deviation {self.label_scale:.6g} "
            shown += "of the training rows"
        table.add_row("Task", self.problem_type.replace("_", " ") + (f": {shown}" if shown else ""))
        table.add_row("Examples", ", ".join(f"{split} {count:,}" for split, count in self.examples.items()))
        table.add_row("Tokenizer", f"{self.vocab_size:,} tokens, inputs of at most {self.max_length:,}")
        if self.tokens:
            saved = f"{self.padded_tokens - self.tokens:,} places of padding ({self.padding_share:.0%} of each batch)"
            if self.position_embedding_type is not None:
                saved += ", not computed"
            table.add_row("Tokens per epoch", f"{self.tokens:,} real ones; {saved}")
        console.print(table)


def summarize(
    model: PreTrainedModel,
    labels: Labels,
    encoded: Mapping[str, Dataset],
    max_length: int,
    vocab_size: int,
    batch_size: int,
    data: DataSummary | None = None,
) -> Summary:
    """Counts parameters, and tokens against padding in batches drawn at random."""
    tokens = padded = 0
    if "train" in encoded:
        lengths = np.array([len(ids) for ids in encoded["train"]["input_ids"]])
        shuffled = np.random.default_rng(0).permutation(lengths)
        tokens = int(lengths.sum())
        padded = sum(
            int(shuffled[start : start + batch_size].max()) * len(shuffled[start : start + batch_size])
            for start in range(0, len(shuffled), batch_size)
        )
    is_posenc = model.config.model_type == PosEncConfig.model_type
    return Summary(
        model=type(model).__name__,
        position_embedding_type=model.config.position_embedding_type if is_posenc else None,
        problem_type=labels.problem_type,
        labels=labels.names,
        label_mean=getattr(model.config, "label_mean", 0.0),
        label_scale=getattr(model.config, "label_scale", 1.0),
        examples={split: len(dataset) for split, dataset in encoded.items()},
        max_length=max_length,
        vocab_size=vocab_size,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        positional_parameters=positional_parameters(model),
        tokens=tokens,
        padded_tokens=padded,
        data=data,
    )


def positional_parameters(model: nn.Module) -> int:
    """How many parameters belong to the positions: those of a PosEnc scheme, or of other models' position tables."""
    marks = (".position.", "position_embedding", "relative_attention_bias", "distance_embedding", "rel_embeddings")
    return sum(
        parameter.numel() for name, parameter in model.named_parameters() if any(mark in f".{name}" for mark in marks)
    )
