"""`check_position`: does a positional scheme keep the promises that the encoder, the Trainer and the Hub rely on?"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import io
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from ..model.configuration_posenc import PosEncConfig
from ..model.modeling_posenc import PosEncForSequenceClassification
from ..model.position_base import PositionScheme
from ..model.positions import _ELSEWHERE, _SIZES, POSITIONS, own_arguments, scheme_class
from .scheme_file import register_position

Outcome = Literal["passed", "failed", "skipped", "expected_failure", "unexpected_pass"]


@dataclass(frozen=True)
class CheckResult:
    """What became of one check."""

    name: str
    outcome: Outcome
    message: str
    """What was measured and what usually causes it, why the check was skipped, or nothing if it passed."""
    seconds: float
    error: Exception | None = None
    """What the check raised, with its traceback."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: passed, skipped, or failed as expected."""
        return self.outcome in ("passed", "skipped", "expected_failure")


@dataclass(frozen=True)
class PositionReport:
    """The record of `check_position`: one result per check, in order. `str(report)` says all; rich prints a table."""

    scheme: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed unexpectedly, and nothing passed that was expected to fail."""
        return all(result.ok for result in self.results)

    @property
    def summary(self) -> str:
        """How many checks ran, and how they ended, in one line."""
        count = {
            outcome: sum(result.outcome == outcome for result in self.results)
            for outcome in ("passed", "failed", "expected_failure", "unexpected_pass", "skipped")
        }
        ran = len(self.results) - count["skipped"]
        ended = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in count.items() if number)
        return f"{self.scheme}: {ran} of {len(self.results)} checks ran in {self.seconds:.1f} s: {ended}."

    @property
    def seconds(self) -> float:
        """Time of all checks."""
        return sum(result.seconds for result in self.results)

    def __getitem__(self, name: str) -> CheckResult:
        """The result of a check; a KeyError if it wasn't asked for."""
        return {result.name: result for result in self.results}[name]

    def raise_on_failure(self) -> "PositionReport":
        """The report itself, if all is well.

        Raises:
            AssertionError: a check failed, or passed where a failure was expected; caused by the first of them.
        """
        bad = [result for result in self.results if not result.ok]
        if bad:
            lines = [f"{result.name}: {result.outcome.replace('_', ' ')}: {result.message}" for result in bad]
            raise AssertionError("\n".join([self.summary, *lines])) from bad[0].error
        return self

    def __str__(self) -> str:
        """The summary, and a line for each check."""
        rows = ((r.outcome.replace("_", " "), r.name, r.seconds, r.message) for r in self.results)
        lines = (f"  {outcome:16} {name:14} {seconds:5.1f} s  {said}" for outcome, name, seconds, said in rows)
        return "\n".join(line.rstrip() for line in (self.summary, *lines))

    def __rich__(self) -> Any:
        """A table."""
        from rich.markup import escape
        from rich.table import Table

        colour = {"passed": "green", "failed": "red", "unexpected_pass": "red"}
        table = Table("check", "outcome", "seconds", "what was found", caption=self.summary, title=self.scheme)
        table.columns[2].justify = "right"
        for result in self.results:
            outcome = f"[{colour.get(result.outcome, 'yellow')}]{result.outcome.replace('_', ' ')}[/]"
            said = result.message or _first_line(POSITION_CHECKS[result.name])
            table.add_row(result.name, outcome, f"{result.seconds:.1f}", escape(said))
        return table


def check_position(
    scheme: type[PositionScheme] | str,
    *,
    kwargs: dict[str, Any] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    checks: Sequence[str] | None = None,
    config_overrides: dict[str, Any] | None = None,
    raise_on_failure: bool = False,
) -> PositionReport:
    """Runs the conformance checks on a positional scheme.

    Tiny encoders with perturbed weights are built around the scheme, on CPU, offline, in about ten seconds; `export`
    and `remote_code` take most of them. Random numbers, threads and the table of schemes are as before afterwards, and
    no file is left.

    ```python
    >>> from hf_posenc import check_position
    >>> check_position("alibi", checks=["padding", "shift"]).ok
    True

    ```

    Args:
        scheme: a subclass of `PositionScheme`, registered or not, or what `config.position_embedding_type` accepts.
        kwargs: the scheme's own arguments (`config.position_embedding_kwargs`).
        expected_failures: {name of a check: reason}. Such a check that passes is an error, as with a strict xfail.
        checks: names of the checks to run; None: all of `POSITION_CHECKS`.
        config_overrides: fields of `PosEncConfig` that replace those of the tiny encoder (D = 32, 4 heads, 2 layers,
            128 positions), for a scheme that needs others, or `rope_parameters`.
        raise_on_failure: raise instead of returning a report that isn't `ok`.

    Returns:
        PositionReport: a record per check: its outcome, what was measured or why it was skipped, and seconds.

    Raises:
        ValueError: the scheme, its arguments or the name of a check don't exist.
        AssertionError: with `raise_on_failure`, a check failed, or passed against expectation.
    """
    if expected_failures is not None and not (
        isinstance(expected_failures, Mapping) and all(isinstance(why, str) for why in expected_failures.values())
    ):
        raise ValueError(
            f"expected_failures={expected_failures!r} gives no reasons. Give {{name of a check: why it must fail}}."
        )
    expected = dict(expected_failures or {})
    names = list(POSITION_CHECKS if checks is None else [checks] if isinstance(checks, str) else checks)
    for argument, given in (("checks", names), ("expected_failures", expected)):
        for name in given:
            if name not in POSITION_CHECKS:
                raise ValueError(f"{argument}: {name!r} is no check. Choose from {', '.join(POSITION_CHECKS)}.")
    with _undisturbed(), _registered(scheme) as (registered, declared_name):
        case = _Case(registered, declared_name, dict(kwargs or {}), dict(config_overrides or {}))
        if kwargs or config_overrides or isinstance(scheme, str):
            case.config()  # what the caller got wrong is the caller's error, not the scheme's
        results = _by_cause([_run(name, case, expected.get(name)) for name in POSITION_CHECKS if name in names])
    label = scheme if isinstance(scheme, str) else getattr(scheme, "__name__", "")
    if kwargs:
        label += f"({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"
    report = PositionReport(label, results)
    return report.raise_on_failure() if raise_on_failure else report


class _Failure(Exception):
    """The check's own verdict, as against an error inside the scheme."""


class _Skip(Exception):
    """The check doesn't apply."""


def _run(name: str, case: "_Case", expected: str | None) -> CheckResult:
    started = time.perf_counter()
    error: Exception | None = None
    outcome: Outcome
    try:
        torch.default_generator.manual_seed(0)
        POSITION_CHECKS[name](case)
        outcome, message = "passed", ""
    except _Skip as skip:
        outcome, message = "skipped", str(skip)
    except Exception as problem:
        error = problem
        outcome, message = "failed", str(problem) if isinstance(problem, _Failure) else _describe(problem)
    if expected is not None and outcome == "failed":
        outcome, message = "expected_failure", f"{expected} ({message})"
    elif expected is not None and outcome == "passed":
        outcome, message = "unexpected_pass", f"expected to fail: {expected}. Remove it from expected_failures."
    return CheckResult(name, outcome, message, time.perf_counter() - started, error)


def _by_cause(results: list[CheckResult]) -> tuple[CheckResult, ...]:
    """An error that several checks met is told by the first of them, and the others name that one."""
    told: dict[str, list[str]] = {}
    for result in results:
        if result.outcome == "failed" and not isinstance(result.error, _Failure):
            told.setdefault(result.message, []).append(result.name)
    found = []
    for result in results:
        names = told.get(result.message, [])
        if len(names) > 1 and result.name == names[0]:
            result = dataclasses.replace(result, message=f"{result.message}. So do {', '.join(names[1:])}")
        elif result.name in names[1:]:
            result = dataclasses.replace(result, message=f"fails as {names[0]} does")
        found.append(result)
    return tuple(found)


def _describe(error: Exception) -> str:
    """An error inside the scheme or the encoder: what it is, and the last place outside torch where it happened."""
    places = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and f"{os.sep}site-packages{os.sep}" not in frame.filename
    ]
    place = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text[:300]}{'...' if len(text) > 300 else ''}{place}"


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """One thread, CPU, float32, gradients on, quiet; all as before afterwards."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    bars, level = is_progress_bar_enabled(), logging.root.manager.disable
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    disable_progress_bar()
    logging.disable(logging.ERROR)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
            torch.device("cpu") if torch.get_default_device().type != "cpu" else contextlib.nullcontext(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        logging.disable(level)
        if bars:
            enable_progress_bar()


@contextlib.contextmanager
def _registered(scheme: type[PositionScheme] | str) -> Iterator[tuple[str, str | None]]:
    """What selects the scheme while this lasts, and the name that its class declares."""
    if isinstance(scheme, str):
        for part in scheme.split("+"):
            scheme_class(part)
        yield scheme, None
        return
    before = dict(POSITIONS)
    own = dict(vars(scheme)) if isinstance(scheme, type) else {}
    name = next((known for known, registered in before.items() if registered is scheme), None)
    declared = own.get("name")
    try:
        if name is None:
            # Its own name where it can have it: that is what a checkpoint will say.
            usable = isinstance(declared, str) and declared.isidentifier()
            wanted = declared if usable else getattr(scheme, "__name__", "")
            name = next(f"{wanted}{n or ''}" for n in itertools.count() if f"{wanted}{n or ''}" not in before)
            register_position(name, scheme)
        yield name, declared
    finally:
        if before != POSITIONS:
            POSITIONS.clear()
            POSITIONS.update(before)
        if "name" in own:
            scheme.name = own["name"]
        elif isinstance(scheme, type) and "name" in vars(scheme):
            del scheme.name


@dataclass
class _Case:
    """A scheme under test, and the tiny encoders around it."""

    name: str
    declared_name: str | None
    kwargs: dict[str, Any]
    overrides: dict[str, Any]

    def config(self, **overrides: Any) -> PosEncConfig:
        values = {
            "vocab_size": 101,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "hidden_dropout_prob": 0.0,
            "max_position_embeddings": 128,
            "num_labels": 3,
            "position_embedding_type": self.name,
            "position_embedding_kwargs": copy.deepcopy(self.kwargs) or None,
        }
        return PosEncConfig(**{**values, **copy.deepcopy(self.overrides), **overrides})

    def classifier(self, **overrides: Any) -> PosEncForSequenceClassification:
        """In evaluation mode, every weight moved: what starts at zero would look blind to order."""
        torch.default_generator.manual_seed(0)
        model = PosEncForSequenceClassification(self.config(**overrides))
        limit = model.model.position.max_length
        if limit is not None and limit < _LONGEST:
            raise ValueError(
                f"max_length={limit} is too short for the checks, which use {_LONGEST} tokens. Give "
                "config_overrides={'max_position_embeddings': 64}, or the argument in kwargs that sets it."
            )
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        return model.eval()

    @functools.cached_property
    def position(self) -> PositionScheme:
        """For what it declares; the checks use those of their own models."""
        return self.classifier().model.position

    @property
    def classes(self) -> list[type[PositionScheme]]:
        return [POSITIONS[part] for part in self.name.split("+")]

    def longest(self, wanted: int) -> int:
        return wanted if self.position.max_length is None else min(wanted, self.position.max_length)

    @property
    def sequences(self) -> list[Tensor]:
        """Short ones, and one that is longer than windows, blocks and tables usually are."""
        return [*_SEQUENCES, _tokens(self.longest(80), seed=80)]


POSITION_CHECKS: dict[str, Callable[[_Case], None]] = {}
"""The checks by name, in the order in which they run; iterate over it for one test per check."""


def _check(function: Callable[[_Case], None]) -> Callable[[_Case], None]:
    POSITION_CHECKS[function.__name__.removeprefix("_check_")] = function
    return function


_SAME, _DIFFERENT = 1e-4, 1e-3
"""Hidden states are about 1: float32 in another order of summation stays below 1e-5, what position does is above."""

_LONGEST = 32

_HOOKS = ("embed", "rotary", "rotate", "bias", "layer_bias")

_EXTRAS = {
    "embed": ("input_ids", "sequence"),
    "rotary": ("lengths", "input_ids", "sequence"),
    "bias": ("input_ids", "sequence"),
    "layer_bias": ("x", "sequence"),
}
"""What a hook gets by a parameter's name: see `position_base`."""


def _tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 101, shape, generator=torch.Generator().manual_seed(seed))


_SEQUENCES = [_tokens(length, seed=length) for length in (9, 1, 4, 6)]


def _padded(sequences: Sequence[Tensor], side: str = "right", extra: int = 0) -> tuple[Tensor, Tensor]:
    length = max(map(len, sequences)) + extra
    ids = torch.zeros(len(sequences), length, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        place = slice(0, len(sequence)) if side == "right" else slice(length - len(sequence), length)
        ids[row, place] = sequence
        mask[row, place] = 1
    return ids, mask


def _alone(encoder: nn.Module, sequences: Sequence[Tensor], start: int = 0) -> list[Tensor]:
    ids = ((sequence[None], torch.arange(start, start + len(sequence))[None]) for sequence in sequences)
    return [encoder(i, position_ids=p).last_hidden_state[0] for i, p in ids]


def _distance(got: Tensor, expected: Tensor) -> float:
    """The largest difference; infinite where one is NaN or alone infinite."""
    if got.shape != expected.shape:
        raise _Failure(f"the shape is {tuple(got.shape)} instead of {tuple(expected.shape)}.")
    difference = (got.double() - expected.double()).abs().masked_fill(got == expected, 0.0)
    return float(difference.nan_to_num(nan=math.inf).max())


def _same(got: Tensor, expected: Tensor, what: str, cause: str, most: float = _SAME) -> None:
    difference = _distance(got, expected)
    if not difference <= most:
        found = "not all numbers are finite" if difference == math.inf else f"they differ by {difference:.1e}"
        raise _Failure(f"{what}: {found}, allowed is {most:g}. {cause}")


def _first_line(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "").split("\n")[0]


@_check
def _check_signature(case: _Case) -> None:
    """Keyword-only sizes and own arguments with JSON defaults; hooks that take what the encoder gives."""
    problems = []
    if case.declared_name is not None and not str(case.declared_name).isidentifier():
        problems.append(f"name={case.declared_name!r} can't name a scheme: use letters, digits and underscores")
    for scheme in case.classes:
        if scheme.__init__ is not nn.Module.__init__:
            problems += _bad_arguments(scheme)
        for hook in (*_HOOKS, "score_mod", "init_weights"):
            takes = list(inspect.signature(getattr(PositionScheme, hook)).parameters)
            has = inspect.signature(getattr(scheme, hook))
            extras = [name for name in _EXTRAS.get(hook, ()) if name in list(has.parameters)[len(takes) :]]
            try:
                has.bind(*takes, **dict.fromkeys(extras))
            except TypeError as error:
                more = f", nor with any of {', '.join(_EXTRAS[hook])} by name" if hook in _EXTRAS else ""
                problems.append(f"{hook} doesn't take ({', '.join(takes)}){more}: {error}")
    if problems:
        raise _Failure("; ".join(problems) + ". PositionScheme says what its constructor and hooks take.")


def _bad_arguments(scheme: type[PositionScheme]) -> Iterator[str]:
    own = own_arguments(scheme)
    for name, parameter in itertools.islice(inspect.signature(scheme.__init__).parameters.items(), 1, None):
        if parameter.kind is not parameter.KEYWORD_ONLY:
            yield f"argument {name!r} isn't keyword-only, so that no config reaches it: write a * before it"
        elif name in _ELSEWHERE or name in _SIZES:
            continue
        elif parameter.default is parameter.empty:
            sizes = ", ".join(_SIZES)
            yield f"argument {name!r} is no size that a config knows ({sizes}) and has no default"
        else:
            try:
                kept = json.loads(json.dumps(own[name])) == own[name]
            except (TypeError, ValueError):
                kept = False
            if not kept:
                yield f"the default {name}={own[name]!r} doesn't survive a config.json: use what JSON holds"


@_check
def _check_shapes(case: _Case) -> None:
    """Every hook returns the shape and dtype that the protocol gives, in float32 and bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        model = case.classifier().model.to(dtype)
        _watch(model.position, _check_shape)
        ids, mask = _padded(_SEQUENCES, "left")
        for model.config.unpad_inputs in (True, False):
            for batch in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
                hidden = model(**batch).last_hidden_state
                if hidden.dtype != dtype or hidden.shape != (*ids.shape, model.config.hidden_size):
                    raise _Failure(f"the encoder gives {_form(hidden)} for {tuple(ids.shape)} tokens in {dtype}.")


def _watch(scheme: PositionScheme, saw: Callable[[str, tuple[Any, ...], Any], None]) -> None:
    """Calls `saw(hook, arguments, result)` whenever the encoder asks this scheme for anything."""

    def watched(hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            found = function(*given, **named)
            saw(hook, given, found)
            return found

        return call

    for hook in _HOOKS:
        setattr(scheme, hook, watched(hook, getattr(scheme, hook)))


def _form(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def _check_shape(hook: str, given: tuple[Any, ...], found: Any) -> None:
    if hook == "embed":
        if not isinstance(found, Tensor) or found.shape != given[0].shape or found.dtype != given[0].dtype:
            raise _Failure(
                f"embed returns {_form(found)} for x {_form(given[0])}. Give x's shape and dtype back: "
                "x + encodings.to(x.dtype)."
            )
    elif hook == "rotary":
        for part in found if isinstance(found, tuple) else (found,):
            if isinstance(part, Tensor) and part.dtype in (torch.bfloat16, torch.float16):
                raise _Failure(f"rotary returns {_form(part)}. Angles must be float32: bfloat16 holds 8 bits of them.")
    elif hook == "rotate":
        forms = [_form(part) for part in found] if isinstance(found, tuple) else [_form(found)]
        width = found[0].shape[-1] if len(forms) == 2 and isinstance(found[0], Tensor) else 0
        if forms != [_form(part.new_empty(*part.shape[:-1], width)) for part in given[:2]]:
            wanted = " and ".join(_form(part) for part in given[:2])
            raise _Failure(
                f"rotate returns {' and '.join(forms)} for q and k {wanted}. Give both back as they were; the last "
                "axis alone may have another length, the same for both."
            )
    elif found is not None:
        positions = given[0] if hook == "bias" else given[2]
        rows, length = (len(positions) if hook == "bias" else len(given[0])), positions.shape[-1]
        fits = isinstance(found, Tensor) and found.dim() == 4 and found.is_floating_point()
        if not fits or found.shape[0] not in (1, rows, len(_SEQUENCES)) or tuple(found.shape[2:]) != (length, length):
            raise _Failure(
                f"{hook} returns {_form(found)} for {rows} rows of {length} places. Give floating-point logits "
                "(1 or B, H or 1, S, S), with every axis: bias[:, None] adds one for the heads."
            )


@_check
def _check_padding(case: _Case) -> None:
    """A batch padded left or right gives the numbers of each sequence alone."""
    encoder = case.classifier().model
    expected = _alone(encoder, case.sequences)
    for side, encoder.config.unpad_inputs in itertools.product(("left", "right"), (True, False)):
        ids, mask = _padded(case.sequences, side)
        hidden = encoder(ids, attention_mask=mask).last_hidden_state
        how = f"padded on the {side} (unpad_inputs={encoder.config.unpad_inputs})"
        for row, alone in enumerate(expected):
            _same(
                hidden[row][mask[row] == 1],
                alone,
                f"A sequence of length {len(alone)} {how} and alone",
                "Compute from `positions` and `is_first` alone: never from the place in the row, its length, or what "
                "stands at padding.",
            )


@_check
def _check_packing(case: _Case) -> None:
    """Sequences packed into one row, however that is said, and into padded rows give the numbers of each alone."""
    encoder, sequences = case.classifier().model, case.sequences
    lengths = [len(sequence) for sequence in sequences]
    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    borders = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    said = {"position_ids": places, "seq_idx": number, "cu_seq_lens_q": borders}
    cause = (
        "A row may hold several sequences: compute from `positions` and `is_first` alone, row by row, without a "
        "cumulative sum or a maximum over the row."
    )
    start = 2 if max(lengths) + 2 <= case.longest(max(lengths) + 2) else 0  # as RoBERTa numbers its tokens
    expected, shifted = (torch.cat(_alone(encoder, sequences, first)) for first in (0, start))
    for encoder.config.unpad_inputs in (True, False):
        how = f"(unpad_inputs={encoder.config.unpad_inputs})"
        for name, value in said.items():
            hidden = encoder(torch.cat(sequences)[None], **{name: value}).last_hidden_state[0]
            _same(hidden, expected, f"Sequences packed by {name} {how} and alone", cause)
        hidden = encoder(torch.cat(sequences)[None], position_ids=places + start).last_hidden_state[0]
        _same(hidden, shifted, f"Sequences packed by position_ids from {start} on {how} and alone", cause)
        ids, mask = _padded([torch.cat(sequences[:2]), torch.cat(sequences[2:])], extra=2)
        position_ids = torch.zeros_like(ids)
        position_ids[mask == 1] = places[0]
        hidden = encoder(ids, attention_mask=mask, position_ids=position_ids).last_hidden_state[mask == 1]
        _same(hidden, expected, f"Sequences packed into two padded rows {how} and alone", cause)


@_check
def _check_permutation(case: _Case) -> None:
    """Tokens permuted together with their positions give the permuted result."""
    encoder, ids = case.classifier().model, _SEQUENCES[0]
    order = torch.tensor([0, 6, 1, 5, 8, 4, 2, 7, 3])  # a scheme may treat the first place apart: see is_first
    expected = encoder(ids[None]).last_hidden_state[0][order]
    for encoder.config.unpad_inputs in (True, False):
        _same(
            encoder(ids[order][None], position_ids=order[None]).last_hidden_state[0],
            expected,
            "Tokens permuted with their positions, and the permuted result",
            "The place in the row was used as the position: use `positions` instead of arange(S).",
        )


@_check
def _check_order(case: _Case) -> None:
    """Shuffled tokens give other logits (with mean pooling), unless the scheme declares `order_blind`."""
    model, ids = case.classifier(), _SEQUENCES[0]
    order = torch.tensor([0, 6, 1, 5, 8, 4, 2, 7, 3])
    difference = _distance(model(ids[order][None]).logits, model(ids[None]).logits)
    if case.position.order_blind and not difference <= _SAME:
        raise _Failure(
            f"the scheme declares order_blind, but shuffled tokens change the logits by {difference:.1e}, allowed is "
            f"{_SAME:g}. Leave the declaration out."
        )
    if not case.position.order_blind and not difference >= _DIFFERENT:
        raise _Failure(
            f"shuffled tokens change the logits by {difference:.1e}, less than {_DIFFERENT:g}. What the hooks return "
            "doesn't depend on `positions`, or no hook is overridden; a control declares order_blind = True."
        )


@_check
def _check_shift(case: _Case) -> None:
    """Equal steps of all positions change nothing, or something, as the scheme declares in `shift_invariant`."""
    declared = case.position.shift_invariant
    if declared is None:
        raise _Skip("the scheme doesn't declare shift_invariant (True: distances alone count; False: they don't).")
    encoder, ids = case.classifier().model, _SEQUENCES[0]
    start = case.longest(46) - len(ids)  # 37: no power of two, nor a period that a scheme is likely to have
    shifted = encoder(ids[None], position_ids=torch.arange(start, start + len(ids))[None]).last_hidden_state
    difference = _distance(shifted, encoder(ids[None]).last_hidden_state)
    if declared and not difference <= _SAME:
        raise _Failure(
            f"the scheme declares shift_invariant = True, but a shift by {start} changes hidden states by "
            f"{difference:.1e}, allowed is {_SAME:g}. Compute from p_j - p_i alone, or declare False."
        )
    if not declared and not difference >= _DIFFERENT:
        raise _Failure(
            f"the scheme declares shift_invariant = False, but a shift by {start} changes hidden states by "
            f"{difference:.1e}, less than {_DIFFERENT:g}. Declare True, or None if it depends."
        )


@_check
def _check_attention(case: _Case) -> None:
    """Eager attention gives the numbers of sdpa, and probabilities that sum to one."""
    ids, mask = _padded(case.sequences, "left")
    real = mask == 1
    cause = (
        "No row of logits may be -inf or NaN throughout: a sequence may have one token, and the softmax of nothing "
        "differs between backends."
    )
    sdpa, eager = (case.classifier(attn_implementation=name).model for name in ("sdpa", "eager"))
    for one, other in zip(_alone(eager, case.sequences), _alone(sdpa, case.sequences), strict=True):
        _same(one, other, f"Eager attention and sdpa on a sequence of length {len(one)}", cause)
    fused = sdpa(ids, attention_mask=mask).last_hidden_state[real]
    _same(eager(ids, attention_mask=mask).last_hidden_state[real], fused, "Eager attention and sdpa", cause)
    out = eager(ids, attention_mask=mask, output_attentions=True)
    _same(out.last_hidden_state[real], fused, "Attention with output_attentions=True and without", cause)
    for weights in out.attentions:
        total = weights.sum(-1).transpose(1, 2)[real]
        _same(total, torch.ones_like(total), "The sums of a token's attention probabilities, and 1", cause)


@_check
def _check_score_mod(case: _Case) -> None:
    """`score_mod` adds, entry by entry, what `bias` and `layer_bias` give."""
    position = case.classifier().model.position
    if not position.uses("bias") and not position.uses("layer_bias"):
        raise _Skip("the scheme adds nothing to the logits.")
    if not position.uses("score_mod"):
        raise _Skip("the scheme has no score_mod, so that flex attention can't run it.")
    for position_ids in (torch.arange(case.longest(80))[None], torch.tensor([[0, 1, 2, 3], [9, 4, 0, 20]])):
        model = case.classifier().model
        seen: list[tuple[str, tuple[Any, ...], Any]] = []
        _watch(model.position, lambda *call, seen=seen: seen.append(call))
        model(_tokens(*position_ids.shape), position_ids=position_ids)
        total: dict[int, Tensor] = {}
        for hook, given, found in seen:
            for layer in [given[3]] if hook == "layer_bias" else range(len(model.layers)) if hook == "bias" else []:
                total[layer] = total.get(layer, torch.zeros(())) + (0.0 if found is None else found)
        positions = next(given[0] if hook == "bias" else given[2] for hook, given, _ in seen if hook.endswith("bias"))
        axes = (len(position_ids), model.config.num_attention_heads, *(2 * position_ids.shape[-1:]))
        b, h, q, k = torch.meshgrid(*map(torch.arange, axes), indexing="ij")
        scores = torch.randn(axes, generator=torch.Generator().manual_seed(3))
        for layer, bias in total.items():
            score_mod = model.position.ask("score_mod", positions, layer)
            if score_mod is None:
                raise _Skip("score_mod returns None, so that flex attention can't run the scheme.")
            _same(
                score_mod(scores, b, h, q, k),
                scores + bias,
                f"Logits with score_mod and with the bias, in layer {layer}",
                "score_mod(score, b, h, q, k) returns the score plus the bias of query q and key k in head h; "
                "`positions` may have one row for all b.",
            )
    ids, mask = _padded(case.sequences, "left")
    flex, sdpa = (case.classifier(attn_implementation=name) for name in ("flex_attention", "sdpa"))
    with torch.no_grad():  # on a CPU flex has no backward
        found, expected = (model(ids, attention_mask=mask).logits for model in (flex, sdpa))
    _same(
        found,
        expected,
        "Logits with flex_attention and with sdpa",
        "score_mod gets the positions of all tokens in one row, sequence after sequence.",
    )


def _gradients(model: PosEncForSequenceClassification) -> dict[str, Tensor | None]:
    """Of a random projection of a batch's logits; long enough for far distances."""
    ids, mask = _padded([_tokens(_LONGEST, seed=5), *_SEQUENCES[:2]])
    logits = model(ids, attention_mask=mask).logits
    model.zero_grad(set_to_none=True)
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(11))).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@_check
def _check_gradients(case: _Case) -> None:
    """A gradient reaches every parameter of the scheme and of the encoder, at every step."""
    model = case.classifier().train()
    first = _gradients(model)
    for name, gradient in first.items():
        if gradient is None:
            cause = "It isn't used, or a .detach(), .data, .item() or torch.no_grad() cuts it off"
            raise _Failure(f"{name} gets no gradient. {cause}; distributed training stops at such a parameter.")
        if not bool(torch.isfinite(gradient).all()):
            raise _Failure(f"the gradient of {name} isn't finite. Usual causes: 0 ** r, sqrt or log at distance 0.")
        if name.startswith("model.position.") and not bool(gradient.any()):
            raise _Failure(f"the gradient of {name} is exactly zero: it has no effect on the logits.")
    try:
        _gradients(model)
    except RuntimeError as error:
        raise _Failure(
            f"the second step fails: {_describe(error)}. Keep nothing computed from weights between two forwards."
        ) from error


@_check
def _check_checkpointing(case: _Case) -> None:
    """Gradient checkpointing of both kinds gives the same gradients."""
    expected = _gradients(case.classifier().train())
    for use_reentrant in (True, False):
        model = case.classifier().train()
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        cause = (
            "What a layer needs must reach it in the state that `rotary` returns, a tensor or any tuple, list or dict "
            "of tensors, and not as an attribute of the scheme."
        )
        what = f"checkpointing with use_reentrant={use_reentrant}"
        try:
            found = _gradients(model)
        except RuntimeError as error:
            raise _Failure(f"{what} fails: {_describe(error)}. {cause}") from error
        for name, gradient in expected.items():
            again = found[name]
            if gradient is None or again is None:
                if gradient is not again:
                    raise _Failure(f"{name} gets a gradient only with or only without {what}. {cause}")
                continue
            scale = max(1.0, float(gradient.abs().max()))
            _same(again / scale, gradient / scale, f"The gradient of {name} with {what} and without", cause)


@_check
def _check_buffers(case: _Case) -> None:
    """The scheme has no buffers, nor registers one when it is used."""
    model = case.classifier()
    model(input_ids=torch.ones(1, 8, dtype=torch.int64))
    names = [name for name, _ in model.model.position.named_buffers()]
    if names:
        raise _Failure(
            f"the scheme has the buffer{'s' if len(names) > 1 else ''} {', '.join(names)}. One that isn't saved comes "
            "back from from_pretrained as uninitialised memory, and a half-precision model rounds it. Recompute it in "
            "the hook from Python numbers."
        )


@_check
def _check_weights(case: _Case) -> None:
    """Weights live in children such as nn.Linear and nn.Embedding, and are used by calling those."""
    model = case.classifier().train()
    scheme = model.model.position
    way_out = (
        "accelerate fetches offloaded weights when the module that owns them is called: use an nn.Embedding or "
        "nn.Linear, and call it."
    )
    owners = {
        module: name
        for name, module in scheme.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    }
    for module, name in owners.items():
        if hasattr(module, "uses"):  # a scheme, or a part of a composed one: the encoder calls its hooks, not itself
            direct = ", ".join(weight for weight, _ in module.named_parameters(recurse=False))
            raise _Failure(f"{direct} is a parameter of the scheme itself{name and f' ({name})'}: {way_out}")
    called = set()
    for module in owners:
        module.register_forward_pre_hook(lambda module, _: called.add(module))
    _gradients(model)
    for module, name in owners.items():
        if module not in called and any(p.grad is not None for p in module.parameters(recurse=False)):
            raise _Failure(f"the weights of {name} are used without calling it (as in {name}.weight[...]): {way_out}")


@contextlib.contextmanager
def _poisoned_memory() -> Iterator[None]:
    """Memory that nobody wrote to is NaN inside."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    filling = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = filling


def _foreign_classes(model: nn.Module) -> list[type]:
    """The classes of schemes that aren't ours; skips the check where one is being tried out and can't be saved yet."""
    schemes = {type(module) for module in model.modules() if hasattr(module, "uses")}
    foreign = [scheme for scheme in schemes if not scheme.__module__.startswith("hf_posenc.model.")]
    for scheme in foreign:
        file = getattr(sys.modules.get(scheme.__module__), "__file__", None)
        if scheme.__module__ == "__main__" or file is None or "<locals>" in scheme.__qualname__:
            raise _Skip(
                f"{scheme.__module__}.{scheme.__qualname__} can't travel with a checkpoint: define the class at the "
                "top of a module file."
            )
    return foreign


@_check
def _check_saving(case: _Case) -> None:
    """A model loaded from its checkpoint gives the same logits, bit by bit."""
    model = case.classifier()
    _foreign_classes(model)
    ids, mask = _padded(_SEQUENCES, "left")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with _poisoned_memory():
            loaded: Any = PosEncForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    again, info = loaded
    again.eval()
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem]:
            raise _Failure(f"the checkpoint has {problem.replace('_', ' ')}: {sorted(map(str, info[problem]))}.")
    for name in ("position_embedding_kwargs", "rope_parameters"):
        written, read = getattr(model.config, name), getattr(again.config, name)
        if written != read:
            raise _Failure(f"{name} was {written} and comes back as {read}. Use what JSON can hold.")
    read_back = again.state_dict()
    for name, weight in model.state_dict().items():
        if not torch.equal(read_back[name], weight):
            raise _Failure(f"{name} comes back different. init_weights must use transformers.initialization.")
    _same(
        again(ids, attention_mask=mask).logits,
        model(ids, attention_mask=mask).logits,
        "Logits of the loaded model and of the saved one",
        "Something that isn't a weight was computed in the constructor, which runs on the meta device when a model is "
        "loaded: compute it in the hook from Python numbers.",
        most=0.0,
    )


@_check
def _check_bfloat16(case: _Case) -> None:
    """In bfloat16 and under autocast, far positions (to 4000, or the last) and long texts cost no more precision."""
    model = case.classifier(**{"max_position_embeddings": 4096, **case.overrides}).model
    last = min(4000, model.position.max_length or 4000)
    half = copy.deepcopy(model).to(torch.bfloat16)
    full = copy.deepcopy(half).float()  # the same rounded weights
    for how, other in (("bfloat16", half), ("autocast to bfloat16", full)):
        errors = []
        for ids, start in ((_SEQUENCES[0], 0), (_SEQUENCES[0], last - 9), (_tokens(min(last, 500)), 0)):
            given = {"input_ids": ids[None], "position_ids": torch.arange(start, start + len(ids))[None]}
            with torch.autocast("cpu", torch.bfloat16, enabled=other is full):
                found = other(**given).last_hidden_state.float()
            errors.append(float((found - full(**given).last_hidden_state).abs().mean()))
        near, far, long = errors
        for where, error in ((f"at positions up to {last - 1}", far), (f"in {min(last, 500)} tokens", long)):
            if not error <= 3 * near + 1e-3:
                raise _Failure(
                    f"the mean error of {how} {where} is {error:.1e}, more than three times that of the first 9 "
                    f"positions ({near:.1e}) + 1e-03. Angles, distances and sums over tokens must be float32 or int64: "
                    "bfloat16 has no whole numbers between 2048 and 2064."
                )


@_check
def _check_device(case: _Case) -> None:
    """Constants are made on the device of the positions: the encoder runs on a device that isn't the CPU."""
    model: Any = case.classifier().to("meta")  # type: ignore[arg-type]  # has shapes and no numbers, so that the code must go as when it is traced
    ids = torch.ones(2, 9, dtype=torch.int64, device="meta")
    try:
        with mock.patch("torch.compiler.is_compiling", return_value=True), torch.no_grad():
            model(ids, attention_mask=ids)
    except Exception as error:
        raise _Failure(
            f"on another device than the CPU (meta) the encoder fails: {_describe(error)}. Make what a hook needs with "
            "device=positions.device, and let no shape or branch depend on data while position_math.tracing()."
        ) from error


class _Logits(nn.Module):
    """Tensors in, a tensor out, as the exporter wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids, attention_mask=attention_mask).logits


@_check
def _check_export(case: _Case) -> None:
    """torch.export with dynamic batch and length gives the same logits at other sizes."""
    model = case.classifier()
    longest = case.longest(64)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=longest)
    sizes = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    given = _padded(_SEQUENCES[:1] + _SEQUENCES[2:])
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # prints graphs
            program = torch.export.export(_Logits(model), given, dynamic_shapes=sizes).module()
    except Exception as error:
        raise _Failure(
            f"torch.export fails: {_describe(error)}. A shape or a branch depends on data: int(tensor), tensor.max(), "
            "unique(), `if tensor`. Guard it by position_math.tracing()."
        ) from error
    for ids, mask in (
        given,
        _padded(_SEQUENCES[2:3]),
        _padded([_tokens(17, seed=3), *_SEQUENCES], "left"),
    ):
        try:
            found = program(ids, mask)
        except Exception as error:
            raise _Failure(
                f"the exported program fails at {tuple(ids.shape)} tokens: {_describe(error)}. A size was a Python "
                "number when it was traced: take it from x.shape, not from len(x)."
            ) from error
        _same(
            found,
            model(ids, attention_mask=mask).logits,
            f"Logits of the exported program and of the model at {tuple(ids.shape)} tokens",
            "A size was a Python number when the program was traced: take it from the tensor's shape.",
        )


@_check
def _check_max_length(case: _Case) -> None:
    """Up to `max_length` it works, past it one ValueError says so; without one, any length works."""
    model, limit = case.classifier().model, case.position.max_length
    if limit is None:
        hidden = model(_tokens(1, 300)).last_hidden_state
        far = model(_tokens(1, 9), position_ids=torch.arange(99_991, 100_000)[None]).last_hidden_state
        if not bool(torch.isfinite(hidden).all() and torch.isfinite(far).all()):
            raise _Failure("300 tokens, or position 99999, give numbers that aren't finite, and max_length is None.")
        return
    try:
        model(_tokens(1, limit))
    except Exception as error:
        raise _Failure(
            f"max_length={limit}, but {limit} tokens fail: {_describe(error)}. It is the number of positions, one more "
            "than the last of them."
        ) from error
    for how, batch in (
        (f"{limit + 1} tokens", {"input_ids": _tokens(1, limit + 1)}),
        (f"position {limit}", {"input_ids": _tokens(1, 2), "position_ids": torch.tensor([[0, limit]])}),
    ):
        try:
            model(**batch)
        except ValueError:
            continue
        except Exception as error:
            raise _Failure(f"{how} raise {_describe(error)} instead of a ValueError before a kernel runs.") from error
        raise _Failure(f"max_length={limit}, but {how} pass without an error.")
    ids, mask = _padded([_tokens(limit)], "left", extra=3)
    model(ids, attention_mask=mask)  # padding makes the row long, not the sequence


_STRANGER = """
import importlib.abc, json, sys

folder, hidden = sys.argv[1], json.loads(sys.argv[2])

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

torch.set_num_threads(1)
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
with torch.no_grad():
    logits = model(**load_file(folder + "/batch")).logits
save_file({"logits": logits.contiguous(), "expected": load_file(folder + "/expected")["logits"]}, folder + "/found")
"""
"""Loads a checkpoint in a process that can import neither hf_posenc nor the scheme's own module."""


@_check
def _check_remote_code(case: _Case) -> None:
    """A fresh process without hf_posenc loads the checkpoint with `trust_remote_code=True`: the same logits."""
    model = case.classifier()
    foreign = _foreign_classes(model)
    ids, mask = _padded(_SEQUENCES, "left")
    batch = {"input_ids": ids, "attention_mask": mask}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "checkpoint"
        model.save_pretrained(folder)
        with torch.no_grad():
            save_file({"logits": model(**batch).logits}, folder / "expected")
        save_file(batch, folder / "batch")
        hidden = sorted({"hf_posenc", *(scheme.__module__.partition(".")[0] for scheme in foreign)})
        home = {"HF_HOME": root, "HF_MODULES_CACHE": f"{root}/modules", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [sys.executable, "-P", "-c", _STRANGER, str(folder), json.dumps(hidden)],
            cwd=root,
            env={**os.environ, **home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise _Failure(
                f"a process without hf_posenc can't load the checkpoint: {said}. The scheme's file may import torch, "
                "transformers and the protocol, and nothing else that isn't installed there."
            )
        found = load_file(folder / "found")
    _same(
        found["logits"],
        found["expected"],
        "Logits of the loaded checkpoint in a process without hf_posenc, and here",
        "The scheme depends on something that isn't in the checkpoint: a module-level setting, a file, an environment "
        "variable.",
        most=1e-6,
    )


@_check
def _check_used(case: _Case) -> None:
    """Every hook that the scheme overrides is asked for, and leaving it out changes the logits."""
    position = case.position
    if position.order_blind:
        raise _Skip("the scheme declares order_blind: leaving it out may change nothing.")
    if position.uses("rotary") and not position.uses("rotate"):
        raise _Failure("rotary is overridden and rotate isn't: nobody uses the state. Override rotate.")
    if position.uses("score_mod") and not position.uses("bias") and not position.uses("layer_bias"):
        raise _Failure(
            "score_mod is overridden and no bias is: eager attention and sdpa never ask for it. Override bias or "
            "layer_bias too."
        )
    hooks = [hook for hook in _HOOKS if hook != "rotary" and position.uses(hook)]
    if not hooks:
        raise _Failure(f"the scheme uses no hook. Override one of {', '.join(_HOOKS)}.")
    ids, mask = _padded(_SEQUENCES)
    expected = case.classifier()(ids, attention_mask=mask).logits
    for hook in hooks:
        model = case.classifier()
        _leave_out(model.model.position, hook)
        difference = _distance(model(ids, attention_mask=mask).logits, expected)
        if not difference >= _DIFFERENT:
            raise _Failure(
                f"without {hook} the logits change by {difference:.1e}, less than {_DIFFERENT:g}: it has no effect. "
                "A bias that is equal for all keys of a query is one (softmax); so is a term multiplied by zero."
            )


def _leave_out(scheme: PositionScheme, hook: str) -> None:
    uses = scheme.uses
    scheme.uses = lambda name: name != hook and uses(name)  # type: ignore[method-assign,assignment]
    if hook == "embed":
        scheme.embed = lambda x, positions, **extras: x  # type: ignore[method-assign]
