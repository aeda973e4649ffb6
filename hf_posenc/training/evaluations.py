"""When a run logs, evaluates and saves, and which weights it keeps: the best, or where that is said the last."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import TrainingArguments

from ..errors import UserError, spell
from ..options import Options
from .metrics import METRICS
from .trainer_fields import strategies

MOST_EVALUATIONS = 20
"""More epochs than this are evaluated several at a time: an evaluation may take longer than a short epoch."""
_STEPS_APART = 500
"""Transformers' own number of steps, where a strategy is `steps` and no number is given."""


@dataclass(frozen=True)
class RunLength:
    """Length of a run: `max_steps`, or else so many epochs."""

    epochs: float
    steps_per_epoch: int
    max_steps: int | None = None

    @property
    def steps(self) -> int:
        """All steps."""
        return self.max_steps or math.ceil(self.epochs * self.steps_per_epoch)


def check_run_length(chosen: Mapping[str, Any], length: RunLength) -> None:
    """Refuses a warm-up or a delay that lasts longer than the run."""
    warmup, delay, steps = chosen.get("warmup_steps", 0), chosen.get("eval_delay", 0), length.steps
    if warmup > steps:
        raise UserError(
            f": the run has {steps:,} steps, so the learning rate would never reach its peak. Give fewer, or a share "
            "of them: warmup_steps=0.1.",
            parameter="set.warmup_steps",
            value=warmup,
        )
    by_steps = strategies(chosen)["eval_strategy"] == "steps"
    whole, unit = (steps, "steps") if by_steps else (steps / length.steps_per_epoch, "epochs")
    if delay > whole:
        short = f": the run has {whole:g} {unit}, so it would never be evaluated. Give less."
        raise UserError(short, parameter="set.eval_delay", value=delay)


def evaluations_of(
    options: Options, chosen: Mapping[str, Any], length: RunLength, problem_type: str, *, validates: bool
) -> dict[str, Any]:
    """When a run logs, evaluates and saves, and whether it keeps the best weights, as fields.

    Args:
        options: of the run.
        chosen: what `set` names.
        length: of the run.
        problem_type: a key of `METRICS`.
        validates: there are validation rows.

    Raises:
        UserError: what is asked for leaves no choice of the best weights, and it isn't said that there need be none.
    """
    epochs = length.steps / length.steps_per_epoch
    asked, apart = strategies(chosen), math.ceil(epochs / MOST_EVALUATIONS)
    usual = "epoch" if apart == 1 else "steps"

    def steps_of(what: str, other: str) -> int:
        given = chosen.get(f"{what}_steps") or chosen.get(f"{other}_steps")
        if given is not None:
            return int(given) if given >= 1 else math.ceil(given * length.steps)
        return _STEPS_APART if asked[f"{what}_strategy"] == "steps" else apart * length.steps_per_epoch

    values = {
        "eval_strategy": (asked["eval_strategy"] or usual) if validates else "no",
        "save_strategy": asked["save_strategy"] or usual,
        "logging_strategy": asked["logging_strategy"] or usual,
        "eval_steps": steps_of("eval", "save"),
        "save_steps": steps_of("save", "eval"),
        "logging_steps": steps_of("logging", "logging"),
    }
    if asked["eval_strategy"] not in (None, "no") and "eval_strategy" in chosen and not validates:
        needed = f"needs validation rows. {_ways_to_validate()}"
        raise UserError(needed, parameter="set.eval_strategy", value=asked["eval_strategy"])
    if options.patience is not None and values["eval_strategy"] == "no":
        raise UserError(f"needs evaluations. {_ways_to_validate()}", parameter="patience", value=options.patience)
    keeps_best = _keeps_best(chosen, values)
    is_compared = keeps_best or options.patience is not None or values["save_strategy"] == "best"
    metric = _metric_for_best(options, chosen, problem_type, is_compared=is_compared)
    return {**values, "load_best_model_at_end": keeps_best, **metric}


def _ways_to_validate() -> str:
    never = spell("set.eval_strategy", "no")
    return f"Give {spell('validation')} or a {spell('validation_share')}, and no {never}."


def _keeps_best(chosen: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """True where the best weights are kept: where they are evaluated and saved at the same steps, or nothing is said.

    Raises:
        UserError: they can't be, and it isn't said that the last ones are kept.
    """
    evaluated, saved = values["eval_strategy"], values["save_strategy"]
    can_choose = "no" not in (evaluated, saved)
    keeps_best: bool = chosen.get("load_best_model_at_end", can_choose)
    if saved == "best" and evaluated == "no":
        raise UserError(f"needs evaluations. {_ways_to_validate()}", parameter="set.save_strategy", value="best")
    if keeps_best and not can_choose:
        needed = "needs evaluations and checkpoints on the way. Leave it out."
        raise UserError(needed, parameter="set.load_best_model_at_end", value=True)
    moments = [_moment(values, what) for what in ("eval", "save")]
    if keeps_best and saved != "best" and moments[0] != moments[1]:
        raise UserError(
            f"Evaluated {moments[0]} and saved {moments[1]}, the best weights may not be saved. Give both alike, or "
            f"{spell('set.save_strategy', 'best')}; or keep the last ones: "
            f"{spell('set.load_best_model_at_end', False)}."
        )
    return keeps_best


def _moment(values: Mapping[str, Any], what: str) -> str:
    """When it is evaluated or saved, in words."""
    is_by_steps = values[f"{what}_strategy"] == "steps"
    return f"every {values[f'{what}_steps']} steps" if is_by_steps else "each epoch"


def _metric_for_best(
    options: Options, chosen: Mapping[str, Any], problem_type: str, *, is_compared: bool
) -> dict[str, Any]:
    """The metric by which weights are best, and in which direction."""
    usual = "loss" if problem_type == "regression" or options.patience is not None else "macro_f1"
    best = chosen.get("metric_for_best_model", usual)
    key, known = best.removeprefix("eval_"), [metric.key for metric in METRICS[problem_type]]
    if key not in ("loss", *known):
        unknown = f"isn't measured here. Choose loss, {', '.join(known)}."
        raise UserError(unknown, parameter="set.metric_for_best_model", value=best)
    if "metric_for_best_model" in chosen and not is_compared:
        useless = "has no effect: the last weights are kept. Leave it out."
        raise UserError(useless, parameter="set.metric_for_best_model", value=best)
    return {"metric_for_best_model": best, "greater_is_better": key not in ("loss", "mse")}


def last_weights_note(recipe: TrainingArguments, options: Options) -> list[str]:
    """A sentence where weights could be chosen by evaluations, and `set` keeps the last ones."""
    given = {"load_best_model_at_end": False, "eval_strategy": "no", "save_strategy": "no"}
    said = [spell(f"set.{name}", value) for name, value in given.items() if options.assigned.get(name) == value]
    if recipe.load_best_model_at_end or not said:
        return []
    return [f"The weights of the last step are kept, not the best on validation rows ({said[0]})."]
