"""`--search N`: short trials of learning rate, dropout and initializer range, scored on the validation split."""

import contextlib
import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from datasets import Dataset
from rich.console import Console
from rich.table import Table
from scipy.stats import qmc

from ..data.options import DataArguments
from ..errors import Diverged, UserError
from ..quiet import without_bars, without_warnings
from ..training.arguments import ClassificationTrainingArguments, ModelArguments
from ..training.metrics import METRICS
from ..training.progress import main_console
from ..training.run import Setup, shared_folder
from ..training.trainer import make_trainer
from .classification import set_up

SHARE = 3
"""A trial takes 1 / SHARE of the steps."""
_DROPOUTS = (0.0, 0.1, 0.2)
_LOWER_IS_BETTER = ("loss", "mse")
_NAMES = {"learning_rate": "learning rate", "hidden_dropout_prob": "dropout", "initializer_range": "start"}


@without_bars()
def search(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    splits: Mapping[str, Any] | None,
    console: Console,
) -> tuple[ModelArguments, dict[str, Any]]:
    """Tries `training.search` combinations, sets the best one in the options, and says what each reached.

    The first trial is of the defaults. The others are spread evenly (a Latin hypercube): learning rates from a quarter
    to four times the default, dropouts 0 to 0.2 and, for a new encoder, half to twice the default `initializer_range`.
    Given options stay. The best trial is chosen by the metric that chooses the best epoch or, if that
    is the loss, by the task's first metric; ties by the loss.

    Returns:
        The options of the model, and what `results.json` keeps: `metric`, `trials`, and the number of the `best`.

    Raises:
        UserError: there is nothing to choose by, or nothing to choose.
    """
    if not (training.do_train and training.do_eval):
        raise UserError(f"--search {training.search} chooses on validation data while training. Give --do-eval too.")
    if training.resume_from_checkpoint:
        raise UserError(f"--search {training.search} can't resume. Give the values that it chose: see results.json.")
    trials: list[dict[str, Any]] = []
    first, setup = _trial(data, model, training, splits, {}, 1, console)
    values = _values(setup, model, training)
    if not values:
        raise UserError(f"--search {training.search}: learning rate, dropout and start are all given. Leave one out.")
    metric = (setup.training.metric_for_best_model or "loss").removeprefix("eval_")
    if metric == "loss":  # the default
        metric = setup.metric
    defaults = {name: center for name, (center, _) in values.items()}
    trials.append({**defaults, **first})
    for point in qmc.LatinHypercube(len(values), rng=training.seed).random(cast(int, training.search) - 1):
        drawn = {name: draw(float(share)) for (name, (_, draw)), share in zip(values.items(), point, strict=True)}
        scores, _ = _trial(data, model, training, splits, drawn, len(trials) + 1, console)
        trials.append({**drawn, **scores})
    best = min(range(len(trials)), key=lambda number: _sort_key(trials[number], metric))
    main_console(training, console).print(_table(trials, best, list(values), metric))
    chosen = {name: trials[best][name] for name in values} if best else {}
    if "learning_rate" in chosen:
        training.learning_rate = chosen["learning_rate"]
    return _with_values(model, chosen), {"metric": metric, "trials": trials, "best": best}


def _trial(
    data: DataArguments,
    model: ModelArguments,
    training: ClassificationTrainingArguments,
    splits: Mapping[str, Any] | None,
    values: dict[str, float],
    number: int,
    console: Console,
) -> tuple[dict[str, float], Setup]:
    """The validation metrics of a short training, whose files are deleted."""
    console = main_console(training, console)
    with shared_folder(training, ".trial-") as folder:
        short = copy.deepcopy(training)
        short.output_dir, short.push_to_hub, short.report_to, short.baseline = str(folder), False, [], False
        short.score_test = short.do_predict = False  # the test split isn't even read into the run
        for name in ("eval_strategy", "save_strategy", "logging_strategy"):
            setattr(short, name, "no")
        short.chooses_evaluations = short.load_best_model_at_end = False
        short.early_stopping_patience = None
        short.learning_rate = values.get("learning_rate", training.learning_rate)
        with without_warnings():  # the final training repeats them
            setup = set_up(data, _with_values(model, values), short, splits)
        short.max_steps = max(1, math.ceil(_steps(setup) / SHARE))
        console.print(f"Search: trial {number} of {training.search}, {short.max_steps} steps", highlight=False)
        trainer = make_trainer(setup, console)
        metrics: dict[str, float] = {}
        with contextlib.suppress(Diverged), contextlib.closing(trainer.progress):
            trainer.train()
            metrics = trainer.evaluate(cast(Any, setup.encoded["validation"]))
    assert setup.labels is not None
    names = ("loss", *(metric.key for metric in METRICS[setup.labels.problem_type]))
    return {name: float(metrics.get(f"eval_{name}", math.nan)) for name in names}, setup


def _steps(setup: Setup) -> int:
    training, rows = setup.training, setup.encoded["train"]
    if training.max_steps > 0 or not isinstance(rows, Dataset):
        return training.max_steps
    return math.ceil(len(rows) / setup.batch_size * training.num_train_epochs)


def _values(setup: Setup, model: ModelArguments, training: ClassificationTrainingArguments) -> dict[str, Any]:
    """What the search varies: each default, and a function from [0, 1] to a value."""
    config: Any = setup.model.config
    overrides = model.config_overrides or ""
    values: dict[str, Any] = {}
    if training.learning_rate is None:
        rate = cast(float, setup.training.learning_rate)
        values["learning_rate"] = rate, lambda share: float(f"{rate * 16 ** (share - 0.5):.3g}")
    is_ours = setup.summary.position_embedding_type is not None
    if is_ours and model.hidden_dropout_prob is None and "hidden_dropout_prob" not in overrides:
        dropouts = sorted({*_DROPOUTS, config.hidden_dropout_prob})
        values["hidden_dropout_prob"] = config.hidden_dropout_prob, lambda share: dropouts[int(share * len(dropouts))]
    if is_ours and model.model_name_or_path is None and "initializer_range" not in overrides:
        start = config.initializer_range
        values["initializer_range"] = start, lambda share: float(f"{start * 4 ** (share - 0.5):.3g}")
    return values


def _with_values(model: ModelArguments, values: dict[str, float]) -> ModelArguments:
    changed = replace(model)
    if "hidden_dropout_prob" in values:
        changed.hidden_dropout_prob = values["hidden_dropout_prob"]
    if "initializer_range" in values:
        start = f"initializer_range={values['initializer_range']}"
        changed.config_overrides = ",".join(filter(None, (model.config_overrides, start)))
    return changed


def _sort_key(trial: dict[str, float], metric: str) -> tuple[float, float]:
    """Better trials first; one that diverged last."""
    score, loss = trial[metric], trial["loss"]
    if not math.isfinite(loss):
        return math.inf, math.inf
    return (score if metric in _LOWER_IS_BETTER else -score), loss


def _table(trials: list[dict[str, Any]], best: int, names: list[str], metric: str) -> Table:
    table = Table("trial", title="Search, on the validation data", title_justify="left")
    shown = [*names, *dict.fromkeys((metric, "loss"))]
    for name in shown:
        table.add_column(_NAMES.get(name, name), justify="right")
    for number, trial in enumerate(trials):
        label = "defaults" if number == 0 else str(number + 1)
        values = [f"{trial[name]:.3g}" if name in names else f"{trial[name]:.4f}" for name in shown]
        table.add_row(f"{label} (best)" if number == best else label, *values, style="bold" if number == best else None)
    return table
