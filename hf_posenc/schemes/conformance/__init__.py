"""`check_scheme`: checks what the encoder, the Trainer and the Hub require of a positional scheme.

The checks are in `hooks.py`, `outputs.py`, `weights.py` and `travelling.py`; `case.py` has what they share.
"""

import contextlib
import itertools
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from unittest import mock

import torch

from ...errors import UserError, checks_types
from ...model.scheme_base import PositionScheme
from ...model.scheme_table import SCHEMES
from ...quiet import without_bars
from ..describe import position_rates, rates_in_words
from ..names import require_scheme
from ..scheme_file import register_scheme
from .case import Case, Failure, Skip, describe
from .hooks import check_repeats, check_shapes, check_signature, check_used
from .outputs import (
    check_attention,
    check_bfloat16,
    check_max_length,
    check_order,
    check_packing,
    check_padding,
    check_permutation,
    check_shift,
)
from .travelling import check_device, check_export, check_remote_code, check_saving
from .weights import check_checkpointing, check_constructor, check_gradients, check_weights

SCHEME_CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        *(check_repeats, check_signature, check_shapes, check_padding, check_packing, check_permutation, check_order),
        *(check_shift, check_attention, check_gradients, check_checkpointing, check_weights, check_constructor),
        *(check_saving, check_bfloat16, check_device, check_export, check_max_length, check_remote_code, check_used),
    )
}
"""The checks by name, in the order in which they run; iterate over it for one test per check."""

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: of the check.
        outcome: `passed`, `failed` or `skipped`.
        message: what was measured and what usually causes it, why the check was skipped, or nothing if it passed.
        seconds: how long it took.
        error: what it raised, with its traceback.
    """

    name: str
    outcome: Outcome
    message: str
    seconds: float
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """True if nothing is wrong: passed or skipped."""
        return self.outcome != "failed"


@dataclass(frozen=True)
class CheckReport:
    """The record of `check_scheme`. `str(report)` has all.

    Attributes:
        scheme: what was checked.
        results: one per check, in order.
        rates: the parts of it that learn at another rate than the encoder, in words; empty if none does.
    """

    scheme: str
    results: tuple[CheckResult, ...]
    rates: str = ""

    @property
    def ok(self) -> bool:
        """True if nothing failed."""
        return all(result.ok for result in self.results)

    @property
    def summary(self) -> str:
        """A line: how many checks ran, and how they ended."""
        count = Counter(result.outcome for result in self.results)
        ran = len(self.results) - count["skipped"]
        ended = ", ".join(f"{count[name]} {name}" for name in get_args(Outcome) if count[name])
        return f"{self.scheme}: {ran} of {len(self.results)} checks ran in {self.seconds:.1f} s: {ended}."

    @property
    def seconds(self) -> float:
        """Time of all checks."""
        return sum(result.seconds for result in self.results)

    def __getitem__(self, name: str) -> CheckResult:
        """The result of a check; a KeyError if it wasn't asked for."""
        return {result.name: result for result in self.results}[name]

    def raise_on_failure(self) -> "CheckReport":
        """Returns the report itself if it is `ok`.

        Raises:
            AssertionError: a check failed; caused by the first of them.
        """
        bad = [result for result in self.results if not result.ok]
        if bad:
            lines = [f"{result.name}: failed: {result.message}" for result in bad]
            raise AssertionError("\n".join([self.summary, *lines])) from bad[0].error
        return self

    def __str__(self) -> str:
        """The summary, a line on learning rates, and a line for each check."""
        rates = [f"  Learning rate of its own weights: {self.rates} (position_rate)."] if self.rates else []
        lines = (f"  {r.outcome:8} {r.name:14} {r.seconds:5.1f} s  {r.message}" for r in self.results)
        return "\n".join(line.rstrip() for line in (self.summary, *rates, *lines))


@checks_types
def check_scheme(
    scheme: type[PositionScheme] | str,
    *,
    scheme_kwargs: dict[str, Any] | None = None,
    only: str | Sequence[str] | None = None,
) -> CheckReport:
    """Runs the conformance checks on a positional scheme.

    Tiny encoders with perturbed weights are built around the scheme, on CPU, offline, in ten seconds to a minute;
    `export` and `remote_code` take most of it. Random numbers, threads and the table of schemes are as before
    afterwards, and no file is left. In a test suite: `check_scheme(Mine).raise_on_failure()`.

    ```python
    >>> from hf_posenc import check_scheme
    >>> check_scheme("alibi", only=["padding", "shift"]).ok
    True

    ```

    Args:
        scheme: a subclass of `PositionScheme`, registered or not, or what `config.position_embedding_type` accepts.
        scheme_kwargs: the scheme's own arguments (`config.position_embedding_kwargs`).
        only: the names of the checks to run. None: all of `SCHEME_CHECKS`.

    Returns:
        CheckReport: a record per check: its outcome, what was measured or why it was skipped, and seconds.

    Raises:
        UserError: the scheme, its arguments or the name of a check don't exist.
    """
    names = _chosen_checks(only)
    kwargs = dict(scheme_kwargs or {})
    with _undisturbed(), _registered(scheme) as (registered, declared_name):
        if kwargs or isinstance(scheme, str):
            require_scheme(registered, kwargs)  # a wrong argument is the caller's error, not the scheme's
        case = Case(registered, declared_name, kwargs)
        results: list[CheckResult] = []
        for name in names:
            fault = results[0].error if results and results[0].name == "repeats" else None
            if fault is None or (name in ("signature", "shapes") and not isinstance(fault, Failure)):
                results.append(_run_check(name, case))
            else:
                results.append(CheckResult(name, "skipped", "comparisons say nothing until `repeats` passes", 0.0))
        rates = ""
        with contextlib.suppress(Exception):  # what a check has told of
            rates = rates_in_words(position_rates(case.config()))
    label = scheme if isinstance(scheme, str) else getattr(scheme, "__name__", "")
    if kwargs:
        label += f"({', '.join(f'{name}={value!r}' for name, value in kwargs.items())})"
    return CheckReport(label, tuple(results), rates)


def _chosen_checks(only: str | Sequence[str] | None) -> list[str]:
    """The names of the checks to run, in order; refuses unknown ones, and none."""
    wanted = [only] if isinstance(only, str) else SCHEME_CHECKS if only is None else only
    if not wanted:
        raise UserError(f"names no check. Choose from {', '.join(SCHEME_CHECKS)}.", parameter="only", value=only)
    if unknown := [name for name in wanted if name not in SCHEME_CHECKS]:
        raise UserError(f"is no check. Choose from {', '.join(SCHEME_CHECKS)}.", parameter="only", value=unknown[0])
    return [name for name in SCHEME_CHECKS if name in wanted]


def _run_check(name: str, case: "Case") -> CheckResult:
    started = time.perf_counter()
    error: Exception | None = None
    outcome: Outcome
    try:
        torch.default_generator.manual_seed(0)
        SCHEME_CHECKS[name](case)
        outcome, message = "passed", ""
    except Skip as skip:
        outcome, message = "skipped", str(skip)
    except Exception as problem:
        error = problem
        outcome, message = "failed", describe(problem)
    return CheckResult(name, outcome, message, time.perf_counter() - started, error)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Sets one thread, CPU, float32, gradients on, no messages; restores all of it afterwards."""
    with (
        contextlib.ExitStack() as settings,
        without_bars(),
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.device("cpu") if torch.get_default_device().type != "cpu" else contextlib.nullcontext(),
        warnings.catch_warnings(),
    ):
        settings.callback(torch.set_num_threads, torch.get_num_threads())
        settings.callback(torch.set_default_dtype, torch.get_default_dtype())
        settings.callback(logging.disable, logging.root.manager.disable)
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        logging.disable(logging.ERROR)
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _registered(scheme: type[PositionScheme] | str) -> Iterator[tuple[str, str | None]]:
    """Registers the scheme while entered; yields the name that selects it, and the name that its class declares."""
    if isinstance(scheme, str):
        yield scheme, None
        return
    declared = vars(scheme).get("name") if isinstance(scheme, type) else None
    name = next((known for known, registered in SCHEMES.items() if registered is scheme), None)
    with mock.patch.dict(SCHEMES):
        if name is None:
            # Its own name where possible: a checkpoint will hold it.
            usable = isinstance(declared, str) and declared.isidentifier()
            wanted = declared if usable else getattr(scheme, "__name__", "")
            name = next(f"{wanted}{n or ''}" for n in itertools.count() if f"{wanted}{n or ''}" not in SCHEMES)
            register_scheme(scheme, name)
        try:
            yield name, declared
        finally:
            if declared is not None:
                scheme.name = declared
            elif "name" in vars(scheme):
                del scheme.name
