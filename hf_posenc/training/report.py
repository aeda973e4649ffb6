"""What a run says of itself: one `Report`, which the terminal, `results.json` and the card show."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.labels import Labels
from ..data.preparing import DataSummary, PreparedData
from ..machine import versions
from ..model.configuration_posenc import PosEncConfig
from .assessment import CLASS_HEAD, PREFIXES, Assessment, Calibration, digits, short, to_beat
from .metrics import METRICS
from .progress import NO_SCORES
from .recipe import Recipe


@dataclass(kw_only=True)
class Report:
    """A run: sizes known before its first step, and what it reached.

    Attributes:
        options: as plain values; paths are cut to their last part.
        base_model: the Hub name of what it started from.
        examples, cut: of each split, how many, and how many of them were cut at `max_length` tokens.
        tokens, padded_tokens: real tokens of one epoch, and places of its padded batches.
        notes: what was decided for this run, a sentence each.
        best: where the kept weights are from: `metric`, `value`, `step`, `epoch`. None: the last step.
        metrics: `train_...`, `eval_...` (validation) and `test_...` numbers.
        history: what was logged, in order.
    """

    name: str
    options: dict[str, Any]
    base_model: str | None
    dataset: str
    model: str
    position_embedding_type: str | None
    problem_type: str
    labels: tuple[str, ...]
    label_mean: float
    label_scale: float
    is_pair: bool
    examples: dict[str, int]
    cut: dict[str, int]
    max_length: int
    vocab_size: int
    parameters: int
    positional_parameters: int
    tokens: int
    padded_tokens: int
    data: DataSummary
    notes: list[str] = field(default_factory=list)
    recipe: dict[str, Any] = field(default_factory=dict)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    best: dict[str, Any] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    assessment: Assessment | None = None
    calibration: Calibration | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float | None = None
    processes: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The content of `results.json`."""
        return {**asdict(self), "data": self.data.to_dict(), "versions": versions()}

    def show_start(self, console: Console) -> None:
        """Prints what is known before the first step."""
        _say(console, f"[bold]Data[/bold]  {escape(self.data.line())}")
        doubts = self.data.doubts()
        for split, count in self.cut.items():
            if count:
                share = f"{count:,} of {self.examples[split]:,} {split} texts ({count / self.examples[split]:.1%})"
                doubts.append(f"{share} have more than {self.max_length:,} tokens and were cut: --max-length.")
        for doubt in doubts:
            _say(console, f"[yellow]Warning:[/yellow] {escape(doubt)}")
        scheme = f", positions: {self.position_embedding_type}" if self.position_embedding_type else ""
        positional = self.positional_parameters / max(self.parameters, 1)
        _say(
            console,
            f"[bold]Model[/bold] {self.model}{scheme}; {self.parameters:,} parameters, of them positional "
            f"{self.positional_parameters:,} ({positional:.2%}); {self.vocab_size:,} tokens, inputs of at most "
            f"{self.max_length:,}; {self.padding()}",
        )
        for note in self.notes:
            _say(console, escape(note))
        if "majority" in self.baselines:
            _say(console, to_beat(self.baselines, METRICS[self.problem_type][0].key))

    def padding(self) -> str:
        """Tokens of an epoch, and how much of its padded batches is padding."""
        share = 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0
        skipped = ", not computed" if self.position_embedding_type is not None else ""
        return f"{self.tokens:,} tokens an epoch, {share:.0%} of each batch padding{skipped}"

    def show(self, console: Console) -> None:
        """Prints what it reached; warnings last, where they are seen."""
        if self.best is not None and self.best["step"] != max(entry["step"] for entry in self.history):
            _say(
                console,
                f"Kept the weights of epoch {round(self.best['epoch'], 2):g} (step {self.best['step']}), the best by "
                f"{self.best['metric']}: {self.best['value']:.4g}.",
            )
        if scored := self.scores():
            console.print(_table(("", *scored), self._score_rows()))
        if self.assessment is not None and self.assessment.classes:
            assessment = self.assessment
            rows = assessment.class_rows(lambda label: escape(short(label, 30)))
            if (more := len(assessment.classes) - len(rows)) > 0:
                rows.append((f"... {more} more in results.json",))
            console.print(_table((f"{assessment.split}: {CLASS_HEAD[0]}", *CLASS_HEAD[1:]), rows))
        if self.calibration is not None:
            _say(console, escape(self.calibration.sentence()))
        for warning in self.assessment.warnings if self.assessment else ():
            _say(console, f"[yellow]Warning:[/yellow] {escape(warning)}")

    def scores(self) -> dict[str, dict[str, float]]:
        """The metrics of each scored split."""
        every = {
            split: {
                name.removeprefix(f"{prefix}_"): value
                for name, value in self.metrics.items()
                if name.startswith(f"{prefix}_") and not name.endswith(NO_SCORES)
            }
            for split, prefix in PREFIXES.items()
        }
        return {split: scores for split, scores in every.items() if scores}

    def _score_rows(self) -> list[tuple[str, ...]]:
        """A row for each metric of the model, and for each baseline the metric to quote."""
        scores = self.scores()
        names = list(next(iter(scores.values()), {}))
        rows = [(name, *(digits(scores[split][name]) for split in scores)) for name in names]
        if self.assessment is not None:
            metric = self.assessment.metric
            for baseline, values in self.baselines.items():
                cells = (values.get(f"{PREFIXES[split]}_{metric}") for split in scores)
                text = ("-" if value is None else digits(value) for value in cells)
                rows.append((f"{metric} of {baseline.replace('_', ' ')}", *text))
        return rows


def begin_report(
    model: PreTrainedModel,
    prepared: PreparedData,
    encoded: Mapping[str, Dataset],
    cut: Mapping[str, int],
    *,
    options: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
) -> Report:
    """What is known of a run before its first step: counts parameters, and tokens against padding."""
    lengths = np.array([len(ids) for ids in encoded["train"]["input_ids"]])
    shuffled = np.random.default_rng(0).permutation(lengths)
    size = recipe.train_batch_size
    batches = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    is_posenc, labels, config = model.config.model_type == PosEncConfig.model_type, prepared.labels, model.config
    pretrained = options["pretrained"]
    return Report(
        name=Path(str(options["output"])).resolve().name,
        options=plain_options(options),
        base_model=None if pretrained is None or Path(pretrained).exists() else pretrained,
        dataset=Path(str(options["data"])).name or "unknown",
        model=type(model).__name__,
        position_embedding_type=config.position_embedding_type if is_posenc else None,
        problem_type=labels.problem_type,
        labels=labels.names,
        label_mean=getattr(config, "label_mean", 0.0),
        label_scale=getattr(config, "label_scale", 1.0),
        is_pair=prepared.columns.is_pair,
        examples={split: len(part) for split, part in encoded.items()},
        cut=dict(cut),
        max_length=tokenizer.model_max_length,
        vocab_size=len(tokenizer),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        positional_parameters=positional_parameters(model),
        tokens=int(lengths.sum()),
        padded_tokens=sum(int(batch.max()) * len(batch) for batch in batches),
        data=prepared.summary,
        notes=_notes(model, labels),
    )


def _notes(model: PreTrainedModel, labels: Labels) -> list[str]:
    scale = getattr(model.config, "label_scale", 1.0)
    if labels.problem_type != "regression" or scale == 1.0:
        return []
    mean = model.config.label_mean
    return [f"Targets are standardised: mean {mean:.6g}, standard deviation {scale:.6g} of the training rows."]


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without local folders: the results file is published with the model."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        is_path = isinstance(value, str) and len(Path(value).parts) > 1
        is_here = is_path and (value.startswith(("/", "~", "./", "../")) or Path(value).exists())
        return Path(value).name if is_here else value

    return {name: plain(value) for name, value in options.items()}


def positional_parameters(model: nn.Module) -> int:
    """How many parameters belong to the positions: those of a PosEnc scheme, or of other models' position tables."""
    marks = (".position.", "position_embedding", "relative_attention_bias", "distance_embedding", "rel_embeddings")
    return sum(
        parameter.numel() for name, parameter in model.named_parameters() if any(mark in f".{name}" for mark in marks)
    )


def _say(console: Console, text: str) -> None:
    """Prints a line; in a file it isn't broken."""
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(head[0], box=None, pad_edge=False)
    for name in head[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
