"""Where a classifier stands: beside baselines, class by class, where it errs, and what to doubt."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from .metrics import METRICS, predictions_from_logits, probabilities_from_logits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES_SHOWN = 12
"""Tables in the terminal and in the card have this many classes at most; results.json has all."""
MOST_CLASSES_DRAWN = 30
ERRORS_IN_TERMINAL = 5
FEW_EXAMPLES = 30
"""So few can look no better than chance whatever the model is."""
_TEXT_SHOWN = 160
_NAMES = {
    "majority": "majority",
    "word_pairs": "word pairs",
    "word_labels": "most frequent label of each word",
    "none": "without positions",
}
_LOWER_IS_BETTER = ("mse",)


@dataclass
class Assessment:
    """What is said of a trained classifier beside its metrics; `to_dict` is in `results.json`."""

    split: str
    """`validation` or `test`: the examples that all of this is about."""
    metric: str
    score: float
    baselines: dict[str, float]
    """The same metric of `majority`, `word_pairs` (`word_labels` of words) and, where it was trained too, `none`."""
    warnings: list[str] = field(default_factory=list)
    classes: list[dict[str, Any]] = field(default_factory=list)
    """`label`, `precision`, `recall`, `f1`, `examples` of each class; empty for a regression."""
    confusion: list[list[int]] | None = None
    """Examples by right label (rows) and predicted label (columns); None for several labels per text and numbers."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """The wrong answers of which the model was surest: `row` of the file (a csv's header is row 1), `text`,
    `label`, `predicted`, `probability`."""
    picture: str | None = None
    """Name of the file beside the card that shows the confusion matrix."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def draw(self, folder: Path) -> None:
        """Draws the confusion matrix, if there is one of not too many classes, and matplotlib is installed."""
        if self.confusion is None or len(self.classes) > MOST_CLASSES_DRAWN or find_spec("matplotlib") is None:
            return
        self.picture = "confusion_matrix.png"
        names = [_short(row["label"], 20) for row in self.classes]
        _confusion_figure(np.array(self.confusion), names, self.split).savefig(folder / self.picture, dpi=120)

    def __rich__(self) -> RenderableType:
        """Tables for the terminal; warnings last, where they are seen."""
        parts: list[RenderableType] = [self._standing()]
        if self.classes:
            parts.append(self._class_table())
        if self.confusion is not None and len(self.classes) <= MOST_CLASSES_SHOWN:
            parts.append(self._confusion_table())
        if self.errors:
            parts.append(self._error_table())
        parts += [f"[yellow]Warning:[/yellow] {escape(warning)}" for warning in self.warnings]
        return Group(*parts)

    def show(self, console: Console | None = None) -> None:
        """Prints it."""
        (console or Console()).print(self, highlight=False)

    def _standing(self) -> Table:
        table = Table(f"{self.split} data", title="Where it stands", title_justify="left")
        table.add_column(self.metric, justify="right")
        table.add_row("this model", f"{self.score:.4f}", style="bold")
        for name, score in self.baselines.items():
            table.add_row(_name(name, self.metric), f"{score:.4f}")
        return table

    def _class_table(self) -> Table:
        table = Table("class", title="Class by class", title_justify="left")
        for name in ("precision", "recall", "f1", "examples"):
            table.add_column(name, justify="right")
        for row in self.classes[:MOST_CLASSES_SHOWN]:
            shares = (f"{row[name]:.3f}" for name in ("precision", "recall", "f1"))
            table.add_row(escape(_short(row["label"], 30)), *shares, f"{row['examples']:,}")
        if len(self.classes) > MOST_CLASSES_SHOWN:
            table.add_row(f"... {len(self.classes) - MOST_CLASSES_SHOWN} more in results.json")
        return table

    def _confusion_table(self) -> Table:
        assert self.confusion is not None
        table = Table("right \\ predicted", title="Confusion matrix", title_justify="left")
        for row in self.classes:
            table.add_column(escape(_short(row["label"], 10)), justify="right")
        for row, counts in zip(self.classes, self.confusion, strict=True):
            table.add_row(escape(_short(row["label"], 16)), *(f"{count:,}" for count in counts))
        return table

    def _error_table(self) -> Table:
        table = Table("row", "text", "right", "predicted", title="The surest errors", title_justify="left")
        table.columns[1].ratio = 1
        for error in self.errors[:ERRORS_IN_TERMINAL]:
            text = " / ".join(filter(None, (error["text"], error.get("text_pair"))))
            table.add_row(str(error["row"]), *(escape(_plain(value)) for value in (text, error["label"], _said(error))))
        if len(self.errors) > ERRORS_IN_TERMINAL:
            table.add_row("...", f"{len(self.errors) - ERRORS_IN_TERMINAL} more in results.json")
        return table

    def markdown(self) -> list[str]:
        """The lines of the model card."""
        lines = ["", "## Where it stands", "", f"{self.metric} on the {self.split} data.", ""]
        scores = {"this model": self.score} | {_name(k, self.metric): v for k, v in self.baselines.items()}
        lines += _rows(["", self.metric], [[name, f"{score:.4f}"] for name, score in scores.items()])
        if "word_pairs" in self.baselines:
            lines += ["", "Word pairs: TF-IDF of words and pairs of neighbouring words, and a linear model."]
        lines += [line for warning in self.warnings for line in ("", f"> {warning}")]
        if self.classes:
            lines += ["", "## Class by class", ""]
            lines += _rows(
                ["class", "precision", "recall", "f1", "examples"],
                [
                    [_cell(row["label"]), *(f"{row[k]:.3f}" for k in ("precision", "recall", "f1")), row["examples"]]
                    for row in self.classes[:MOST_CLASSES_SHOWN]
                ],
            )
        if self.confusion is not None and len(self.classes) <= MOST_CLASSES_SHOWN:
            names = [_cell(row["label"]) for row in self.classes]
            lines += ["", "## Confusion matrix", "", "Rows: the right label. Columns: the predicted one.", ""]
            counts = zip(names, self.confusion, strict=True)
            lines += _rows(["", *names], [[name, *row] for name, row in counts])
        if self.picture is not None:
            lines += ["", f"![Confusion matrix]({self.picture})"]
        if self.errors:
            lines += ["", "## Errors", "", f"The wrong answers of which it was surest, of the {self.split} data.", ""]
            lines += ["| row | text | right | predicted |", "| ---: | --- | --- | --- |"]
            for error in self.errors:
                text = " / ".join(filter(None, (error["text"], error.get("text_pair"))))
                cells = (error["row"], *map(_cell, (text, error["label"], _said(error))))
                lines.append(f"| {' | '.join(map(str, cells))} |")
        return lines


def _confusion_figure(counts: np.ndarray, names: Sequence[str], split: str) -> "Figure":
    """Counts in cells, whose colour is the share of the right label's examples."""
    from matplotlib.figure import Figure

    side = 2.2 + 0.45 * len(names)
    figure = Figure(figsize=(side + 0.6, side), layout="constrained")
    axes = figure.add_subplot()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(names))
    axes.set_xticks(ticks, names, rotation=45, ha="right")
    axes.set_yticks(ticks, names)
    axes.set(xlabel="predicted", ylabel="right", title=f"Confusion matrix, {split} data")
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=8)
    return figure


def _rows(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def _name(baseline: str, metric: str) -> str:
    return "mean" if baseline == "majority" and metric in _LOWER_IS_BETTER else _NAMES.get(baseline, baseline)


def _said(error: Mapping[str, Any]) -> str:
    """What was predicted, and how surely."""
    sure = f" ({error['probability']:.2f})" if "probability" in error else ""
    return _plain(error["predicted"]) + sure


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "(none)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    """Text that can't end a Markdown cell or begin a tag."""
    return _short(_plain(value), _TEXT_SHOWN).translate({ord(mark): f"\\{mark}" for mark in "\\|`*_[]<>$"})


def _short(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def to_beat(baselines: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """One line for before the training: the scores of the baselines, on the validation data where there is some."""
    key = next(f"{prefix}_{metric}" for prefix in ("eval", "test") if f"{prefix}_{metric}" in baselines["majority"])
    scores = ", ".join(f"{_name(name, metric)} {scores[key]:.3f}" for name, scores in baselines.items())
    return f"To beat: {scores} ({'test' if key.startswith('test') else 'validation'} {metric})"


def assess(
    *,
    split: str,
    logits: np.ndarray,
    labels: np.ndarray,
    texts: Sequence[Sequence[str]],
    names: Sequence[str],
    problem_type: str,
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    rows: Sequence[int] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    errors_shown: int = 10,
    pretrained: bool = False,
) -> Assessment:
    """Looks at the predictions of one split.

    Args:
        split: `validation` or `test`.
        logits: (n, C).
        labels: what is right, in the form in which the model takes it.
        texts: `(first,)`, or `(first, second)` for pairs.
        names: of the classes.
        problem_type: the task.
        metrics: of the run, with prefixes `eval_` and `test_`.
        baselines: the same of each baseline.
        rows: the number of each text in its file. None: counted from 1.
        history: what the Trainer logged while training.
        errors_shown: how many errors are listed.
        pretrained: whether it began with trained weights, so that this isn't what one could try.
    """
    found = _standing(split, METRICS[problem_type][0].key, metrics, baselines)
    predicted = predictions_from_logits(logits, problem_type)
    if problem_type != "regression":
        found.classes = _classes(labels.astype(int), predicted, range(len(names)), names)
    if problem_type == "single_label_classification":
        found.confusion = confusion_matrix(labels, predicted, labels=range(len(names))).tolist()
    found.errors = _errors(logits, labels, texts, names, problem_type, errors_shown)
    if rows is not None:
        found.errors = [{**error, "row": rows[error["row"] - 1]} for error in found.errors]
    found.warnings = _warnings(found, predicted, len(labels), names, problem_type, history, pretrained)
    return found


def assess_words(
    split: str,
    right: Sequence[str],
    predicted: Sequence[str],
    names: Sequence[str],
    metric: str,
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    *,
    history: Sequence[Mapping[str, Any]] = (),
    pretrained: bool = False,
) -> Assessment:
    """Looks at the labels of words, (n,) each; the other arguments are those of `assess`."""
    found = _standing(split, metric, metrics, baselines)
    found.classes = _classes(right, predicted, names, names)
    found.confusion = confusion_matrix(right, predicted, labels=names).tolist()
    said = np.array([names.index(name) for name in predicted])
    found.warnings = _warnings(
        found, said, len(right), names, "single_label_classification", history, pretrained, units="words"
    )
    return found


def _standing(
    split: str, metric: str, metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]]
) -> Assessment:
    key = f"{'test' if split == 'test' else 'eval'}_{metric}"
    others = {name: scores[key] for name, scores in baselines.items() if key in scores}
    return Assessment(split=split, metric=metric, score=float(metrics[key]), baselines=others)


def _classes(right: Any, predicted: Any, labels: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    columns = precision_recall_fscore_support(right, predicted, labels=labels, zero_division=0)
    return [
        {"label": name, "precision": float(p), "recall": float(r), "f1": float(f), "examples": int(n)}
        for name, p, r, f, n in zip(names, *columns, strict=True)
    ]


def _errors(
    logits: np.ndarray,
    labels: np.ndarray,
    texts: Sequence[Sequence[str]],
    names: Sequence[str],
    problem_type: str,
    most: int,
) -> list[dict[str, Any]]:
    """The wrong answers with the highest probability; of numbers those that are farthest off."""
    right: list[Any]
    said: list[Any]
    if problem_type == "regression":
        said, right = logits.reshape(-1).tolist(), labels.reshape(-1).tolist()
        sure = np.abs(logits.reshape(-1) - labels.reshape(-1))
    else:
        chances = probabilities_from_logits(logits, problem_type)
        predicted = predictions_from_logits(logits, problem_type)
        if problem_type == "single_label_classification":
            sure = np.where(predicted == labels, 0.0, chances.max(-1))
            right, said = ([names[int(n)] for n in column] for column in (labels, predicted))
        else:  # the surest of the labels that are wrongly there or wrongly missing
            sure = np.where(predicted == labels, 0.0, np.maximum(chances, 1 - chances)).max(-1)
            right, said = (
                [[names[n] for n in np.flatnonzero(row).tolist()] for row in rows] for rows in (labels, predicted)
            )
    found = []
    for row in np.argsort(-sure, kind="stable")[:most]:
        if sure[row] <= 0:
            break
        error = {"row": int(row) + 1, "text": _short(texts[0][row], _TEXT_SHOWN)}
        if len(texts) > 1:
            error["text_pair"] = _short(texts[1][row], _TEXT_SHOWN)
        error |= {"label": right[row], "predicted": said[row]}
        if problem_type != "regression":
            error["probability"] = round(float(sure[row]), 4)
        found.append(error)
    return found


def _warnings(
    found: Assessment,
    predicted: np.ndarray,
    examples: int,
    names: Sequence[str],
    problem_type: str,
    history: Sequence[Mapping[str, Any]],
    pretrained: bool,
    units: str = "examples",
) -> list[str]:
    """What a person should doubt, in words."""
    said: list[str] = []
    try_this = (
        "Train longer, or give more rows."
        if pretrained
        else ("Start from pretrained weights (--pretrained), train longer, or give more rows.")
    )
    score, others = found.score, found.baselines
    lower = found.metric in _LOWER_IS_BETTER
    one_class = problem_type == "single_label_classification" and len(np.unique(predicted)) == 1
    if one_class and len(names) > 1:
        said.append(f"It predicts {names[int(predicted[0])]!r} for all {examples:,} {found.split} {units}. {try_this}")
    elif "majority" in others and not lower:
        chance = others["majority"]
        if score <= chance + 2 * math.sqrt(chance * (1 - chance) / examples):
            said.append(
                f"{examples} {found.split} {units} are too few to tell {found.metric} {score:.3f} from chance "
                f"({chance:.3f})."
                if examples < FEW_EXAMPLES and score > chance
                else f"It is no better than chance: {found.metric} {score:.3f}; always the most frequent answer: "
                f"{chance:.3f} ({examples:,} {units})."
            )
    elif "majority" in others and score >= others["majority"]:
        said.append(
            f"It is no better than always the mean: {found.metric} {score:.4g} and {others['majority']:.4g}. {try_this}"
        )
    at_chance = bool(said)
    if "word_pairs" in others and (score > others["word_pairs"] if lower else score < others["word_pairs"]):
        said.append(
            f"It is {'worse than' if lower else 'below'} word pairs: {found.metric} {score:.3f}, and a linear model on "
            f"words and word pairs has {others['word_pairs']:.3f}. {try_this}"
        )
    if "word_labels" in others and score < others["word_labels"]:
        said.append(
            f"It is below the most frequent label of each word, which knows no context: {found.metric} {score:.3f} and "
            f"{others['word_labels']:.3f}. {try_this}"
        )
    if "none" in others and not at_chance:
        margin = 0.0 if lower else 2 * math.sqrt(max(score * (1 - score), 1e-4) / examples)
        if (score + margin >= others["none"]) if lower else (score - margin <= others["none"]):
            said.append(
                f"The same encoder without positions is as good, within chance: {found.metric} {others['none']:.3f}. "
                "This data hardly needs word order."
            )
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    if len(losses) > 1 and losses[-1] <= min(losses) and losses[-1] < 0.97 * losses[-2]:
        said.append(
            f"The validation loss was still falling ({losses[-2]:.3f}, {losses[-1]:.3f}). Train longer: "
            "--num-train-epochs."
        )
    return said
