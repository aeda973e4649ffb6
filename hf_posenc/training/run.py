"""The `Setup` of a run, the `Run` that is kept of it, and its result."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.columns import Columns
from ..data.labels import Labels
from ..data.prepared import Part
from .assess import assess
from .assessment import Assessment
from .losses import ClassificationLoss, LossAndMetrics
from .summary import Summary

TRAINED_ON = "_trained_on.npy"
"""In the folder of a run: hashes of its training texts, so that an evaluation says which it shares. Never published."""
PREFIXES = {"validation": "eval", "test": "test"}
"""Prefixes of the metrics of each scored split."""


@dataclass(kw_only=True)
class Run:
    """A run: what its checkpoint, results and card are written from."""

    output_dir: Path
    options: Mapping[str, dict[str, Any]]
    """Of the `data`, the `model` and the `training`, as plain values; see `plain_options`."""
    base_model: str | None
    """The Hub name of what it started from."""
    repo_id: str | None
    """Where it is pushed to."""
    batch_size: int
    """Examples of a step: of all devices and accumulated batches."""
    processes: int
    columns: Columns
    labels: Labels
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    summary: Summary
    test_rows: Sequence[int] | None = None
    """Which rows of the test data are predicted, by their numbers from 0. None: all."""
    trained_on: Sequence[int] | None = None
    """The marks of the training texts (see `data.splitting.mark_of`). None: it doesn't train."""
    best: dict[str, Any] | None = None
    """Where the kept weights are from: `metric`, `value`, `step`, `epoch`, `checkpoint`. None: the last step."""
    metrics: dict[str, float] | None = None
    """All metrics, at the end."""
    assessment: Assessment | None = None
    """Set when the model has been scored."""

    @property
    def name(self) -> str:
        """What its checkpoint is called: as the folder."""
        return self.output_dir.resolve().name

    @property
    def dataset(self) -> str:
        """The data's name: of the Hub, or of the folder or file."""
        data = self.options["data"]
        sources = ("dataset_name", "train_file", "validation_file", "test_file")
        return next((data[source] for source in sources if data[source]), "unknown")

    @property
    def trains(self) -> bool:
        """Whether weights are trained, and not only scored."""
        return self.options["training"]["do_train"]

    @property
    def is_new(self) -> bool:
        """Whether it began with random weights."""
        return self.options["model"]["model_name_or_path"] is None


@dataclass(kw_only=True)
class Setup(Run):
    """All that a training loop needs: a `Run`, its encoded data, and how it is trained and scored."""

    training: Any
    """The options, as `transformers.TrainingArguments`."""
    encoded: Mapping[str, Any]
    """The splits as token ids and, where there are labels, `labels`: a `Dataset` each."""
    examples: dict[str, Part]
    """The rows of the scored splits that have labels, by the prefix of their metrics: `eval`, `test`."""
    collator: Any
    loss: ClassificationLoss
    compute_metrics: LossAndMetrics
    metric: str
    """The one to quote."""
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metrics of simpler models on the `examples`."""

    def assess(self, prefix: str, metrics: Mapping[str, float], history: Sequence[Mapping[str, Any]]) -> None:
        """Sets `assessment`, from the last evaluation, if its examples have labels.

        Args:
            prefix: of their metrics, `eval` or `test`.
            metrics: what was measured.
            history: what was logged.
        """
        scored = self.compute_metrics
        if prefix not in self.examples or scored.labels is None or scored.predicted is None:
            return
        self.assessment = assess(
            split=next(split for split, own in PREFIXES.items() if own == prefix),
            labels=scored.labels,
            predicted=scored.predicted,
            names=self.labels.names,
            problem_type=self.labels.problem_type,
            metric=self.metric,
            metrics=metrics,
            baselines=self.baselines,
            history=history,
            pretrained=not self.is_new,
            positions=getattr(self.model.config, "position_embedding_type", None) != "none",
        )

    def kept(self) -> Run:
        """What stays of it: without its data, loss and baselines."""
        return Run(**{item.name: getattr(self, item.name) for item in fields(Run)})


@dataclass
class TrainingResult:
    """What a run leaves: also in `results.json` in its folder."""

    output_dir: Path
    metrics: dict[str, float]
    """`train_...`, `eval_...` (validation) and `test_...` numbers."""
    summary: Summary
    history: list[dict[str, Any]] = field(default_factory=list)
    """What was logged, in order: losses, learning rates, validation metrics of each epoch."""
    assessment: Assessment | None = field(default=None, kw_only=True, repr=False)
    """Of the test data, else the validation data."""
    model: PreTrainedModel = field(kw_only=True, repr=False)
    tokenizer: PreTrainedTokenizerBase = field(kw_only=True, repr=False)
    run: Run = field(kw_only=True, repr=False)
    """What `save_run` needs to write the run elsewhere."""


@contextlib.contextmanager
def shared_folder(training: Any, prefix: str) -> Iterator[Path]:
    """A temporary folder in the run's own, the same in all processes; the main one deletes it when all have left."""
    main, name = training.process_index == 0, [""]
    if main:
        Path(str(training.output_dir)).mkdir(parents=True, exist_ok=True)
        name = [tempfile.mkdtemp(prefix=prefix, dir=str(training.output_dir))]
    broadcast_object_list(name)
    try:
        yield Path(name[0])
        PartialState().wait_for_everyone()
    finally:
        if main:
            shutil.rmtree(name[0], ignore_errors=True)
