"""Reads and checks the JSON files of a results folder, so that no other module has to."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NotRequired, Required, TypedDict, get_origin

from huggingface_hub.dataclasses import validate_typed_dict
from huggingface_hub.errors import StrictDataclassError

from hf_posenc.errors import UserError, one_line, sentence

from .outcomes import from_dict

_LARGEST = 2**63
"""Integers from here on don't fit into NumPy's int64."""


ENDED = ("done", "diverged")
"""The status of runs that aren't repeated; `diverged`: a trial whose learning rate led to NaN."""


_Number = int | float
_Objects = list[dict[str, Any]]


def _schema(**fields: Any) -> Any:
    """The fields of a record, by their types; one that isn't `NotRequired` has to be there. There may be more."""
    kinds = {name: kind if get_origin(kind) is NotRequired else Required[kind] for name, kind in fields.items()}
    return TypedDict("Record", kinds)  # type: ignore[operator]


_RUN = {"task": str, "scheme": str, "seed": int, "settings": dict[str, Any]}
_FAILED = _schema(**_RUN, error=str, learning_rate=NotRequired[_Number])
_DONE = _schema(
    **_RUN,
    **dict.fromkeys(("parameters", "positional_parameters"), int),
    **dict.fromkeys(("seconds", "learning_rate"), _Number),
    tests=_Objects,
    loss=list[list[_Number]],
    versions=dict[str, str],
    machine=dict[str, Any],
    config=NotRequired[dict[str, Any]],
    search=NotRequired[dict[str, Any]],
    source_sha256=NotRequired[str],
    steps=NotRequired[int],
    commit=NotRequired[str | None],
    train_examples=NotRequired[int | None],
)
_SEARCHED = _schema(seed=int, scores=dict[str, _Number | None], seconds=_Number)
"""How the learning rate of a run was found."""
_TEST = {"part": str, "length": int, "examples": int, "data": NotRequired[str | None]}
"""A model's result on one part at one length."""
_SCORED = _schema(**_TEST, metric=str, value=_Number | None, units=dict[str, str])
_SKIPPED = _schema(**_TEST, skipped=str)
_BASELINE = _schema(task=str, scheme=str, tests=_Objects, development=NotRequired[dict[str, _Number | None]])
_MACHINE = _schema(device=str)


def name_of(run: Mapping[str, Any]) -> str:
    """The name of a run's folder, by what its record says."""
    return f"{run['task']}-{run['scheme']}-seed{run['seed']}"


class Damaged(UserError):
    """A file of a results folder doesn't hold what it should."""

    def __init__(self, path: Path, reason: BaseException | str) -> None:
        """The file, and what is wrong with it."""
        self.reason = reason if isinstance(reason, str) else one_line(reason) or type(reason).__name__
        super().__init__(f"{str(path)!r} is damaged: {self.reason} Delete it, and run `compare` again.")


@contextlib.contextmanager
def _naming(path: Path, where: str = "") -> Iterator[None]:
    """Makes what is wrong with a record `Damaged`, which names the file."""
    try:
        yield
    except Damaged:
        raise
    except ValueError as error:
        raise Damaged(path, f"{where}{sentence(error)}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in which every number is finite: NaN and infinity are None.

    Raises:
        Damaged: it can't be read, or holds something else.
    """
    try:
        value = json.loads(
            path.read_text(encoding="utf-8-sig"), parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole
        )
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(path, f"it can't be read: {sentence(error)}") from error
    if not isinstance(value, dict):
        raise Damaged(path, f"it holds {_shown(value)}, which is no object.")
    return value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) >= _LARGEST:
        raise ValueError(f"the number {text:.30}... is too large")
    return value


def read_run(path: Path, *, searched: bool = False) -> dict[str, Any]:
    """What a `run.json` holds: a run that is done or has failed, or a trial that diverged.

    Args:
        path: the file.
        searched: whether its learning rate must have been searched for.

    Raises:
        Damaged: it can't be read, a field is missing, or is of another type.
    """
    run = read_json(path)
    with _naming(path):
        if run.get("status") not in (*ENDED, "failed"):
            raise ValueError(f"its status is {_shown(run.get('status'))}, neither 'done' nor 'failed'.")
        if run["status"] != "done":
            _check(run, _FAILED)
            return run
        _check(run, _DONE)
        _check(run["machine"], _MACHINE, "machine")
        _check_tests(run["tests"])
        if any(len(entry) != 2 or not isinstance(entry[0], int) for entry in run["loss"]):
            raise ValueError("Field 'loss' holds something else than pairs of a step and a number.")
        if searched:
            _check(run.get("search"), _SEARCHED, "search")
            if not run["search"]["scores"]:
                raise ValueError("Field 'search' holds nothing that the learning rate was chosen from.")
            for name in run["search"]["scores"]:
                float(name)
    return run


def read_baselines(path: Path) -> list[dict[str, Any]]:
    """What a file of `baselines` holds: an entry for each.

    Raises:
        Damaged: it can't be read, a field is missing, is of another type, or holds counts that can't be.
    """
    baselines = read_json(path).get("baselines")
    with _naming(path):
        if not isinstance(baselines, list):
            raise ValueError("Field 'baselines' is no list.")
        for place, baseline in enumerate(baselines):
            _check(baseline, _BASELINE, f"baselines[{place}]")
            _check_tests(baseline["tests"])
            check_counts(path, baseline["tests"])
    return baselines


def check_counts(path: Path, tests: list[dict[str, Any]]) -> None:
    """Refuses counts from which no metric can be computed.

    Raises:
        Damaged: they can't be those of so many examples, or aren't finite, as after a training that diverged.
    """
    for place, test in enumerate(tests):
        if "skipped" in test:
            continue
        with _naming(path, f"tests[{place}]: "):
            units = len(from_dict(test["metric"], test["units"]).units)
            if units > test["examples"]:
                raise ValueError(f"it has {units} units, and {test['examples']} examples")


def _check_tests(tests: list[dict[str, Any]]) -> None:
    if not tests:
        raise ValueError("Field 'tests' is empty.")
    for place, test in enumerate(tests):
        _check(test, _SKIPPED if "skipped" in test else _SCORED, f"tests[{place}]")


def _check(record: Any, schema: Any, where: str = "") -> None:
    """Refuses a record that lacks a field of the schema, or has one of another type; it may have more fields."""
    where = where and f"{where}: "
    if not isinstance(record, Mapping):
        raise ValueError(f"{where}{_shown(record)} is no object.")
    names = schema.__required_keys__ | schema.__optional_keys__
    try:
        validate_typed_dict(schema, {name: record[name] for name in record if name in names})
    except StrictDataclassError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the innermost says where in a list it is
            cause = cause.__cause__
        raise ValueError(f"{where}{sentence(cause):.300}") from error


def _shown(value: Any) -> str:
    return f"{value!r:.40}"
