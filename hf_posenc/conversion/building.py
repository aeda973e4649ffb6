"""Builds the PosEnc model of a checkpoint, whatever its family: labels, weights, and the account of its keys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UserError, one_line, user_errors
from ..model import modeling_posenc
from ..model.package_config import PosEncConfig
from ..model.positions import make_position
from ..tasks import TASKS
from .report import Accounting
from .sources import Source


@dataclass
class Loaded:
    """A source as a PosEnc model, in float32, with the account of its keys."""

    model: PreTrainedModel
    task: str
    model_type: str
    folder: Path
    dtype: torch.dtype
    fingerprint: str
    """Of the source's weights, see `sources.fingerprint`."""
    keys: Accounting
    notes: list[str]


def model_class(task: str) -> type[PreTrainedModel]:
    """The class of a task's model.

    Raises:
        UserError: there is no such task.
    """
    if task not in TASKS:
        raise UserError(f"task={task!r} is unknown. Choose one of {', '.join(TASKS)}.")
    return getattr(modeling_posenc, f"PosEnc{TASKS[task]}")


def read_as(config_class: Any, source: Source, what: str) -> Any:
    """A checkpoint's config.json as a class of configurations reads it.

    Raises:
        UserError: it is no configuration of this class, which is called `what`.
    """
    try:
        return config_class.from_dict(dict(source.raw))
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{source.name!r}: config.json is no {what} configuration: {one_line(error)}") from error


def build_config(fields: dict[str, Any]) -> PosEncConfig:
    """A PosEncConfig, with its scheme's arguments complete; what it or the scheme refuses becomes a UserError."""
    with user_errors(), torch.device("meta"):
        config = PosEncConfig(**fields)
        make_position(config)
    return config


def set_labels(config: Any, task: str, wanted_labels: int | None, wanted: str | None, source: str) -> int | None:
    """Sets the number of labels that was asked for; returns it, or None where none was or the task has no labels.

    Raises:
        UserError: it isn't the source's, and no task was asked for, which alone makes a new head.
    """
    if wanted_labels is None or task not in ("text-classification", "token-classification"):
        return None
    if wanted is None and wanted_labels != config.num_labels:
        raise UserError(
            f"num_labels={wanted_labels}, but the classifier of {source!r} has {config.num_labels} labels. Leave it "
            f"out, or ask for a new classifier with task={task!r} too."
        )
    config.num_labels = wanted_labels
    return wanted_labels


def other_labels(name: str, value: Tensor, labels: int | None) -> str | None:
    """Why our weight of a classifier can't be kept for this many labels, or None: then it can."""
    has_row_per_label = name.startswith("classifier.out_proj.") or name in ("classifier.weight", "classifier.bias")
    if labels is None or not has_row_per_label or value.shape[:1] == (labels,):
        return None
    return f"a classifier for {value.shape[:1].numel()} labels; this has {labels}"


def fill(
    cls: type[PreTrainedModel],
    config: PosEncConfig,
    state: dict[str, Tensor],
    new: list[str],
    source: str,
    names: dict[str, str],
    seed: int,
) -> PreTrainedModel:
    """The model with exactly these weights; only those in `new` keep their random start; `names` are the source's."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = cls(config).eval()  # type: ignore[call-arg]
    expected = model.state_dict()
    for key, value in state.items():
        if key in expected and value.shape != expected[key].shape:
            raise UserError(
                f"{source!r}: {names.get(key, key)!r} has shape {tuple(value.shape)}, its config.json says "
                f"{tuple(expected[key].shape)}. They don't belong together, or the checkpoint is damaged."
            )
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= set(new), (missing, new)
    assert not unexpected, unexpected
    return model
