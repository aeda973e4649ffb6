"""What a run says of itself: one `Report`, which the terminal, `results.json` and the card show."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from huggingface_hub import EvalResult, ModelCardData
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.preparing import DataSummary, PreparedData
from ..machine import versions
from ..markdown import plain, render
from ..options import Options
from .assessment import CLASS_HEAD, PREFIXES, Assessment, Calibration, digits, short
from .metrics import METRICS
from .trainer import NO_SCORES

HERE = "path/to/this/folder"
"""Stands in a checkpoint's card for its folder; `publish` puts the repository there."""
_TASK = "text-classification"
"""The task's name on the Hub."""


@dataclass(kw_only=True)
class Report:
    """A run: sizes known before its first step, and what it reached.

    Attributes:
        options: as plain values; paths are cut to their last part.
        base_model: the Hub name of what it started from.
        examples, cut: of each split, how many, and how many of them were cut at `max_length` tokens.
        notes: what was decided for this run, a sentence each.
        best: where the kept weights are from: `metric`, `value`, `step`, `epoch`. None: the last step.
        metrics: `train_...`, `eval_...` (validation) and `test_...` numbers.
        history: what was logged, in order.
    """

    name: str
    options: dict[str, Any]
    base_model: str | None
    dataset: str
    position_embedding_type: str
    problem_type: str
    labels: tuple[str, ...]
    is_pair: bool
    examples: dict[str, int]
    cut: dict[str, int]
    max_length: int
    vocab_size: int
    parameters: int
    positional_parameters: int
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
        _say(
            console,
            f"[bold]Model[/bold] positions: {self.position_embedding_type}; {self.parameters:,} parameters, of them "
            f"positional {self.positional_parameters:,} ({self.positional_parameters / self.parameters:.2%}); "
            f"{self.vocab_size:,} tokens, inputs of at most {self.max_length:,}",
        )
        for note in self.notes:
            _say(console, escape(note))

    def show(self, console: Console) -> None:
        """Prints what it reached; warnings last, where they are seen."""
        if self.best is not None and self.best["step"] != max(entry["step"] for entry in self.history):
            _say(
                console,
                f"Kept the weights of epoch {round(self.best['epoch'], 2):g} (step {self.best['step']}), the best by "
                f"{self.best['metric']}: {self.best['value']:.4g}.",
            )
        if scored := self.scores():
            console.print(_table(("", *scored), self.score_rows()))
        if self.assessment is not None and self.assessment.classes:
            rows = self.assessment.class_rows(lambda label: escape(short(label, 30)))
            if (more := len(self.assessment.classes) - len(rows)) > 0:
                rows.append((f"... {more} more in results.json",))
            console.print(_table((f"{self.assessment.split}: {CLASS_HEAD[0]}", *CLASS_HEAD[1:]), rows))
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

    def score_rows(self) -> list[tuple[str, ...]]:
        """A row for each metric of the model, and for each baseline the metric to quote; a column for each split."""
        scores, metric = self.scores(), METRICS[self.problem_type][0].key
        rows = {name: [part[name] for part in scores.values()] for name in next(iter(scores.values()), {})}
        for baseline, values in self.baselines.items():
            cells = [values[f"{PREFIXES[split]}_{metric}"] for split in scores]
            rows[f"{metric} of {baseline.replace('_', ' ')}"] = cells
        return [(name, *map(digits, cells)) for name, cells in rows.items()]

    def card(self) -> str:
        """The README of the checkpoint: metadata that the Hub reads, how to load it, results, and how it was made."""
        metadata = ModelCardData(
            library_name="transformers",
            pipeline_tag=_TASK,
            base_model=self.base_model,
            tags=["posenc", self.position_embedding_type, "custom_code"],
            model_name=self.name,
            eval_results=[
                EvalResult(
                    task_type=_TASK,
                    dataset_type=self.dataset,
                    dataset_name=self.dataset,
                    dataset_split=split,
                    metric_type=metric,
                    metric_value=round(value, 4),
                )
                for split, metrics in self.scores().items()
                for metric, value in metrics.items()
                if metric != "loss"
            ]
            or None,
        )
        trained = {
            **self.recipe,
            "class_weights": self.options["class_weights"],
            "lora": self.options["lora"] or None,
            "max_length": self.max_length,
            "seed": self.options["seed"],
            "weights": self.best and f"best by {self.best['metric']}: epoch {self.best['epoch']:g}",
            "parameters": f"{self.parameters:,}, positional {self.positional_parameters:,}",
        }
        return render(
            Path(__file__).with_name("model_card.md.jinja"),
            metadata=metadata.to_yaml(),
            report=self,
            place=HERE,
            class_head=CLASS_HEAD,
            hyperparameters=[(name, plain(value)) for name, value in trained.items() if value is not None],
            versions=versions(),
        )


def begin_report(
    model: PreTrainedModel,
    prepared: PreparedData,
    encoded: Mapping[str, Dataset],
    cut: Mapping[str, int],
    options: Options,
    tokenizer: PreTrainedTokenizerBase,
) -> Report:
    """What is known of a run before its first step."""
    pretrained = options.pretrained
    return Report(
        name=Path(str(options.output)).resolve().name,
        options=plain_options(options.to_dict()),
        base_model=None if pretrained is None or Path(pretrained).exists() else pretrained,
        dataset=Path(str(options.data)).name or "unknown",
        position_embedding_type=model.config.position_embedding_type,
        problem_type=prepared.labels.problem_type,
        labels=prepared.labels.names,
        is_pair=prepared.columns.is_pair,
        examples={split: len(part) for split, part in encoded.items()},
        cut=dict(cut),
        max_length=tokenizer.model_max_length,
        vocab_size=len(tokenizer),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        positional_parameters=sum(part.numel() for name, part in model.named_parameters() if ".position." in name),
        data=prepared.summary,
    )


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without local folders: the results file is published with the model."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        is_path = isinstance(value, str) and len(Path(value).parts) > 1
        is_here = is_path and (value.startswith(("/", "~", "./", "../")) or Path(value).exists())
        return Path(value).name if is_here else value

    return {name: plain(value) for name, value in options.items()}


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
