"""What the tasks share: the `Run`, its preparation, and its output folder."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.columns import Columns
from ..data.labels import Labels
from ..data.options import DataArguments
from ..errors import Interrupted
from ..training import checkpoints
from .arguments import ModelArguments, RunArguments
from .assessment import Assessment
from .report import Summary

logger = logging.get_logger(__name__)


TRAINED_ON = "_trained_on.npy"
"""In the folder of a run: hashes of its training texts, so that an evaluation says which it shares. Never published."""


@dataclass
class Run:
    """A run of any task: what reports and saving need."""

    data: DataArguments
    arguments: ModelArguments
    training: RunArguments
    columns: Columns
    labels: Labels | None
    """None for a masked language model."""
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    summary: Summary
    test_rows: Sequence[int] | None = field(default=None, kw_only=True)
    """Which rows of the test data are predicted, by their numbers from 0. None: all."""
    best: dict[str, Any] | None = field(default=None, kw_only=True)
    """Where the kept weights are from: `metric`, `value`, `step`, `epoch`, `checkpoint`. None: the last step."""
    metrics: dict[str, float] | None = field(default=None, kw_only=True)
    """All metrics, at the end."""
    trained_on: Sequence[int] | None = field(default=None, kw_only=True)
    """The marks of the training texts (see `data.splitting.mark_of`), where these were in memory."""
    search: dict[str, Any] | None = field(default=None, kw_only=True)
    """What `--search` tried and chose."""
    assessment: Assessment | None = field(default=None, kw_only=True)
    """Set when a classifier has been scored."""

    @property
    def start(self) -> dict[str, Any]:
        """What `assess` wants to know of the model: whether it began with trained weights, and has positions."""
        scheme = getattr(self.model.config, "position_embedding_type", None)
        return {"pretrained": self.arguments.model_name_or_path is not None, "positions": scheme != "none"}


@dataclass
class TrainingResult:
    """What a run leaves: also in `results.json` in its folder."""

    output_dir: Path
    metrics: dict[str, float]
    """`train_...`, `eval_...` (validation) and `test_...` numbers."""
    summary: Summary
    history: list[dict[str, Any]] = field(default_factory=list)
    """What was logged, in order: losses, learning rates, training and validation metrics of each epoch."""
    assessment: Assessment | None = field(default=None, kw_only=True, repr=False)
    """Of the test data, else the validation data."""
    model: PreTrainedModel = field(kw_only=True, repr=False)
    tokenizer: PreTrainedTokenizerBase = field(kw_only=True, repr=False)
    run: Run = field(kw_only=True, repr=False)
    """What `save_run` needs to write the run elsewhere."""


@contextlib.contextmanager
def shared_folder(training: RunArguments, prefix: str) -> Iterator[Path]:
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


@contextlib.contextmanager
def ending_clearly(training: RunArguments, is_lora: bool = False) -> Iterator[None]:
    """Locks the folder. Turns a full disk into a UserError and Ctrl-C into an Interrupted that say what is left.

    The checkpoints of a run that is replaced are set aside.
    """
    folder, resumed = str(training.output_dir), training.resume_from_checkpoint
    goes_on = resumed is not None and Path(resumed).resolve().parent == Path(folder).resolve()
    with contextlib.ExitStack() as stack:
        stack.enter_context(checkpoints.disk_errors(folder))
        if training.process_index == 0:
            stack.enter_context(checkpoints.owned(folder))
            if training.do_train and training.overwrite_output_dir and not goes_on:
                stack.enter_context(checkpoints.set_aside(folder))
        try:
            with checkpoints.disk_errors(folder):  # inside, while the files it names still exist
                yield
        except Interrupted:
            raise
        except KeyboardInterrupt as interrupt:
            raise Interrupted(checkpoints.what_is_left(folder, is_lora)) from interrupt
