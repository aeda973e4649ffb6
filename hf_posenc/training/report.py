"""Report of a run: one `TrainingReport`, which the terminal, `results.json` and the card show."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
from datasets import Dataset
from huggingface_hub import EvalResult, ModelCardData
from rich.console import Console
from rich.markdown import Markdown
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.metrics import ConfusionMatrixDisplay
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.opening import Checkpoint
from ..data.preparing import DataSummary, PreparedData
from ..data.tokenizer import doubts_of_unknown
from ..errors import spell
from ..machine import versions
from ..markdown import HERE, markdown_table, plain, render
from ..options import Options, recorded
from ..progress import NO_SCORES
from ..schemes.describe import position_rates, rates_in_words
from .classes import class_scores, class_table, class_tables, confusion, short
from .metrics import METRICS, predictions_from_logits, probabilities_from_logits

_TASK = "text-classification"
"""The task's name on the Hub."""
PICTURE = "confusion_matrix.png"
"""The file beside a card that shows it."""
_MOST_CLASSES_DRAWN = 30
_BINS = 15
PREFIXES = {"validation": "eval", "test": "test"}
"""Prefixes of the metrics of each scored split."""
_WORDS = {"words": "words", "word_pairs": "words and word pairs"}
"""What each linear baseline sees."""


@dataclass(frozen=True)
class Calibration:
    """Distance of probabilities from shares of right answers, before and after they are divided by a temperature.

    The temperature T minimises the loss of softmax(logits / T) on the validation rows (Guo et al. 2017, arXiv
    1706.04599). The expected calibration error is the mean over the examples of |accuracy - confidence| in their bin,
    15 bins of equal width.
    """

    temperature: float
    before: float
    after: float
    split: str
    """Where the errors were measured: `test`, or `validation`, on which the temperature was fitted too."""

    def sentence(self) -> str:
        """In words."""
        where = "test rows" if self.split == "test" else "validation rows, on which it was fitted: no fair measure"
        worse = "" if self.after < self.before else ": leave that out"
        return (
            f"Calibration error {self.before:.3f}, with temperature {self.temperature:.2f} "
            f"(`hf-posenc predict --calibrated`) {self.after:.3f}, on the {where}{worse}."
        )


def calibrate(
    fitted: tuple[np.ndarray, np.ndarray], measured: tuple[np.ndarray, np.ndarray], split: str
) -> Calibration | None:
    """Fits a temperature to logits (n, C) and labels (n,), and measures it on others; None where all are right.

    Then the least temperature is the best, and each answer to any text would be certain.
    """
    logits, labels = np.asarray(fitted[0], dtype=np.float64), fitted[1].astype(int)
    if (logits.argmax(1) == labels).all():
        return None

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(logits / math.exp(log_temperature), axis=1)[np.arange(len(labels)), labels].mean())

    temperature = round(math.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x), 4)
    before, after = (calibration_error(measured[0] / value, measured[1]) for value in (1.0, temperature))
    return Calibration(temperature, before, after, split)


def calibration_error(logits: np.ndarray, labels: np.ndarray) -> float:
    """The expected calibration error of logits (n, C) against labels (n,); see `Calibration`."""
    shares = probabilities_from_logits(logits, "single_label_classification")
    confidence, right = shares.max(1), shares.argmax(1) == labels
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(labels))


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """A run: sizes known before its first step, and what it reached.

    Attributes:
        options: as plain values; paths are cut to their last part: `output` is the run's name.
        lineage: what it started from, as its checkpoint says it: `base_model`, a name on the Hub, and a licence.
        examples, cut: of each split, how many, and how many of them were cut at `max_length` tokens.
        notes: what was decided for this run, a sentence each.
        assessed: the split that the rest is of: the test rows, else the validation rows.
        classes: `label`, `precision`, `recall`, `f1`, `examples` of each class, scores None without examples.
        confusion: examples by right label (rows) and predicted label (columns), for one label per text, up to 1,000
            labels.
        picture: file name of its picture, beside the card.
        warnings: what to doubt.
        best: where the kept weights are from: `metric`, `value`, `step`, `epoch`. None: the last step.
        metrics: `train_...`, `eval_...` (validation) and `test_...` numbers.
        history: what was logged, in order.
        seconds: of the whole run; None where it went on after a stop.
    """

    options: dict[str, Any]
    lineage: dict[str, Any]
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
    assessed: str | None = None
    classes: list[dict[str, Any]] = field(default_factory=list)
    confusion: list[list[int]] | None = None
    picture: str | None = None
    warnings: list[str] = field(default_factory=list)
    calibration: Calibration | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float | None = None
    processes: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The content of `results.json`."""
        return {**asdict(self), "versions": versions()}

    def doubts(self) -> list[str]:
        """Reasons to doubt the result, and the data."""
        return [*self.warnings, *self.data.doubts]

    def show_start(self, console: Console) -> None:
        """Prints what is known before the first step."""
        _say(
            console,
            f"Data  {self.data.line}",
            *(f"Warning: {doubt}" for doubt in self.data.doubts),
            f"Model  positions: {self.position_embedding_type}; {self.parameters:,} parameters, of them positional "
            f"{self.positional_parameters:,} ({self.positional_parameters / self.parameters:.2%}); "
            f"{self.vocab_size:,} tokens, inputs of at most {self.max_length:,}",
            *self.notes,
        )

    def show(self, console: Console) -> None:
        """Prints what it reached; warnings last, where they are seen."""
        if self.best is not None and self.best["step"] != max(entry["step"] for entry in self.history):
            _say(
                console,
                f"Kept the weights of epoch {round(self.best['epoch'], 2):g} (step {self.best['step']}), the best by "
                f"{self.best['metric']}: {self.best['value']:.4g}.",
            )
        tables = class_tables(str(self.assessed), self.classes, self.confusion, "results.json")
        console.print(Markdown(f"{self.score_table()}\n\n{tables}"))
        is_certain = self.problem_type == "single_label_classification" and "validation" in self.examples
        certain = ["No temperature is fitted: all validation rows are answered rightly."] * is_certain
        _say(
            console,
            *(certain if self.calibration is None else [self.calibration.sentence()]),
            *(f"Warning: {warning}" for warning in self.warnings),
        )

    def assess(self, split: str, logits: np.ndarray, labels: np.ndarray) -> Self:
        """The report with what is said of the predictions on one split, beside its metrics.

        Args:
            split: `validation` or `test`.
            logits: (n, C).
            labels: the right answers in the model's form: numbers (n,), or rows of 0 and 1 (n, C).
        """
        predicted = predictions_from_logits(logits, self.problem_type)
        return replace(
            self,
            assessed=split,
            classes=class_scores(labels, predicted, self.labels),
            confusion=confusion(labels, predicted, self.labels),
            warnings=self._beside_constant(split, predicted) + self._beside_linear(split),
        )

    def _standing(self, split: str) -> tuple[str, int, float, dict[str, float]]:
        """The metric to quote, 1 where more of it is better or -1, and its value: the model's, and the baselines'."""
        metric = METRICS[self.problem_type][0].key
        key = f"{PREFIXES[split]}_{metric}"
        others = {name: scores[key] for name, scores in self.baselines.items()}
        return metric, -1 if metric == "mse" else 1, self.metrics[key], others

    def _beside_constant(self, split: str, predicted: np.ndarray) -> list[str]:
        """A warning if it gives one answer to all texts, or is hardly better than that."""
        metric, sign, score, others = self._standing(split)
        examples, chance = f"{len(predicted):,} {split} examples", others.get("majority")
        has_one_label = self.problem_type == "single_label_classification"
        if has_one_label and len(self.labels) > 1 and len(np.unique(predicted)) == 1:
            return [f"It predicts {self.labels[int(predicted[0])]!r} for all {examples}."]
        if chance is None:
            return []
        margin = 2 * math.sqrt(chance * (1 - chance) / len(predicted)) if sign > 0 else 0.0
        if not sign * score <= sign * chance + margin:
            return []
        constant = "the most frequent answer" if sign > 0 else "the mean"
        said = f"{metric} {digits(score, 3)} and {digits(chance, 3)}"
        return [f"It isn't clearly better than always {constant}: {said} ({examples})."]

    def _beside_linear(self, split: str) -> list[str]:
        """A warning if a linear model on words is better."""
        metric, sign, score, others = self._standing(split)
        linear = max((name for name in _WORDS if name in others), key=lambda name: sign * others[name], default=None)
        if linear is None or not sign * score < sign * others[linear]:
            return []
        return [
            f"A linear model on {_WORDS[linear]} is better: {metric} {digits(others[linear], 3)}; this model has "
            f"{digits(score, 3)}."
        ]

    def draw(self, folder: Path) -> Self:
        """Draws the confusion matrix, if it has at most `_MOST_CLASSES_DRAWN` classes and matplotlib is installed.

        Returns:
            The report with the picture's name.
        """
        if self.confusion is None or len(self.labels) > _MOST_CLASSES_DRAWN or find_spec("matplotlib") is None:
            return replace(self, picture=None)
        from matplotlib.figure import Figure

        names = [short(name, 24).replace("$", r"\$") for name in self.labels]
        side = 2.2 + 0.45 * len(names)
        figure = Figure(figsize=(side + 0.6, side), layout="constrained")
        shown = ConfusionMatrixDisplay(np.array(self.confusion), display_labels=names)
        axes = figure.add_subplot(title=f"{self.assessed} data")
        shown.plot(ax=axes, cmap="Blues", colorbar=False, xticks_rotation=45)
        figure.savefig(folder / PICTURE, dpi=120)
        return replace(self, picture=PICTURE)

    def class_table(self) -> str:
        """Precision, recall, F1 and number of examples of the first classes, in Markdown; "-": no examples."""
        return class_table(str(self.assessed), self.classes, "results.json")

    def scores(self) -> dict[str, dict[str, float]]:
        """The metrics of each scored split."""
        return {
            split: {
                name.removeprefix(f"{prefix}_"): value
                for name, value in self.metrics.items()
                if name.startswith(f"{prefix}_") and not name.endswith(NO_SCORES)
            }
            for split, prefix in PREFIXES.items()
            if f"{prefix}_loss" in self.metrics
        }

    def score_table(self) -> str:
        """Each metric of the model, and of each baseline the metric to quote, for each split, in Markdown."""
        scores, metric = self.scores(), METRICS[self.problem_type][0].key
        rows = {name: [part[name] for part in scores.values()] for name in next(iter(scores.values()), {})}
        for baseline, values in self.baselines.items():
            cells = [values[f"{PREFIXES[split]}_{metric}"] for split in scores]
            constant = baseline == "majority" and metric == "mse"
            rows[f"{metric} of {'the mean' if constant else baseline.replace('_', ' ')}"] = cells
        table = [(name, *map(digits, cells)) for name, cells in rows.items()]
        return markdown_table(("", *scores), table) if table else ""

    def card(self) -> str:
        """The README of the checkpoint: metadata that the Hub reads, how to load it, results, and how it was made."""
        data = {split: self.options.get(split) or self.options["data"] for split in PREFIXES}  # a file of its own
        metadata = ModelCardData(
            library_name="transformers",
            pipeline_tag=_TASK,
            **self.lineage,
            tags=["posenc", self.position_embedding_type, "custom_code"],
            model_name=self.options["output"],
            eval_results=[
                EvalResult(
                    task_type=_TASK,
                    dataset_type=data[split],
                    dataset_name=data[split],
                    dataset_split=split,
                    metric_type="f1" if metric == "macro_f1" else metric,
                    metric_name="macro F1" if metric == "macro_f1" else None,
                    metric_value=float(digits(value)),
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
            "weights": self.best and f"best by {self.best['metric']}: epoch {self.best['epoch']:g}",
            "parameters": f"{self.parameters:,}, positional {self.positional_parameters:,}",
        }
        return render(
            Path(__file__).with_name("model_card.md.jinja"),
            metadata=metadata.to_yaml(),
            report=self,
            place=HERE,
            hyperparameters=[(name, plain(value)) for name, value in trained.items() if value is not None],
        )


def begin_report(
    model: PreTrainedModel,
    prepared: PreparedData,
    encoded: Mapping[str, Dataset],
    cut: Mapping[str, int],
    options: Options,
    tokenizer: PreTrainedTokenizerBase,
    checkpoint: Checkpoint | None,
    *,
    notes: list[str],
    baselines: dict[str, dict[str, float]],
    processes: int,
) -> TrainingReport:
    """Starts a report with what is known of a run before its first step."""
    output = Path(str(options.output)).resolve()
    length, examples = tokenizer.model_max_length, {split: len(part) for split, part in encoded.items()}
    doubts = prepared.summary.doubts + [
        f"{count:,} of {examples[split]:,} {split} texts ({count / examples[split]:.1%}) have more than {length:,} "
        f"tokens and were cut: {spell('max_length')}."
        for split, count in cut.items()
        if count
    ]
    doubts += doubts_of_unknown(encoded, tokenizer)
    rates = rates_in_words(position_rates(model.config)) if options.position_rate is None else ""
    return TrainingReport(
        options=recorded({**asdict(options), "data": options.data or "unknown", "output": str(output)}),
        lineage={} if checkpoint is None else checkpoint.lineage,
        position_embedding_type=model.config.position_embedding_type,
        problem_type=prepared.labels.problem_type,
        labels=prepared.labels.names,
        is_pair=prepared.columns.is_pair,
        examples=examples,
        cut=dict(cut),
        max_length=length,
        vocab_size=len(tokenizer),
        parameters=model.num_parameters(),
        positional_parameters=sum(part.numel() for name, part in model.named_parameters() if ".position." in name),
        data=DataSummary(prepared.summary.line, doubts),
        notes=[f"The scheme's own weights learn at another rate: {rates} ({spell('position_rate')})."] * bool(rates)
        + notes,
        baselines=baselines,
        processes=processes,
    )


def _say(console: Console, *lines: str) -> None:
    """Prints lines; in a file they aren't broken."""
    for line in lines:
        style = "yellow" if line.startswith("Warning: ") else None
        console.print(line, style=style, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def digits(score: float, places: int = 4) -> str:
    """A score with so many decimals; a small one with three digits."""
    return f"{score:.{places}f}" if score == 0 or abs(score) >= 0.001 else f"{score:.3g}"
