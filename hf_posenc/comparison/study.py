"""A results folder as numbers: scores by scheme, part and length, and their differences."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

from hf_posenc.errors import UserError
from hf_posenc.model import PosEncConfig
from hf_posenc.model.scheme_table import SCHEMES

from .outcomes import Outcome, from_dict
from .plan import Plan, Task
from .records import name_of
from .references import MAJORITY, TO_BEAT, USUAL_FORM
from .results_folder import RUNS_NAME, load_plan, load_references, load_runs
from .run import PICTURE_NAME
from .statistics import Difference, Interval, Learned, Sample, has_learned, holm, interval, paired

logger = logging.get_logger(__name__)

Parts = str | tuple[str, ...] | None
"""A part of a task, several, or all."""


@dataclass
class Study:
    """The runs of a results folder."""

    plan: Plan
    done: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    folder: Path
    references: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """The baselines, by task and name."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Runs and files that couldn't be read, with the reason."""
    _samples: dict[Any, Sample | None] = field(default_factory=dict, init=False, repr=False)
    _learned: dict[Any, Learned | None] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def read(cls, folder: str | Path) -> "Study":
        """Reads a folder of `compare`.

        Damaged files are left out, and named in a warning.

        Raises:
            UserError: it holds no run that is done, or one of another plan.
        """
        plan = load_plan(folder)
        damaged: dict[str, str] = {}
        runs = load_runs(folder, plan, damaged)
        done = [run for run in runs if run["status"] == "done"]
        failed = [run for run in runs if run["status"] != "done"]
        if not done:
            reasons = f" {len(failed)} failed: {failed[0]['error']}" if failed else ""
            reasons += "".join(f" {name} is damaged: {reason}" for name, reason in [*damaged.items()][:1])
            raise UserError(f"No run in {str(folder)!r} is done.{reasons} Run `hf-posenc compare` first.")
        references = load_references(folder, done, damaged)
        for name, reason in damaged.items():
            logger.warning(
                f"{name} in {str(folder)!r} is damaged and left out: {reason} Delete it, and run `hf-posenc compare` "
                "again."
            )
        return cls(plan, done, failed, Path(folder), references, damaged)

    @property
    def missing(self) -> list[str]:
        """Runs of the plan that aren't there."""
        made = {*map(name_of, (*self.done, *self.failed)), *self.damaged}
        return [run.name for run in self.plan.runs() if run.name not in made]

    @cached_property
    def schemes(self) -> list[str]:
        """The schemes that have a run, in the plan's order."""
        tested = {run["scheme"] for run in self.done}
        return [scheme for scheme in self.plan.schemes if scheme in tested]

    @cached_property
    def tasks(self) -> list[Task]:
        """The tasks that have a run, in the plan's order."""
        tested = {run["task"] for run in self.done if run["tests"]}
        return [task for task in self.plan.tasks if task.name in tested]

    def runs(self, task: Task, scheme: str) -> list[dict[str, Any]]:
        """The done runs of a task and scheme, by seed."""
        reference = self.references.get(task.name, {}).get(scheme)
        if reference is not None:  # the same for every seed
            return [{**reference, "seed": seed} for seed in sorted(self.plan.seeds)]
        runs = [run for run in self.done if run["task"] == task.name and run["scheme"] == scheme]
        return sorted(runs, key=lambda run: run["seed"])

    def parts(self, task: Task, length: int | None = None) -> list[str]:
        """The names of a task's tests, or of those at a length."""
        tests = (test for run in self.done if run["task"] == task.name for test in run["tests"])
        return list(dict.fromkeys(test["part"] for test in tests if length in (None, test["length"])))

    def lengths(self, task: Task) -> list[int]:
        """The lengths at which a task was tested, without `same_lengths`."""
        same = self.same_lengths(task)
        return [length for length in self._results(task) if length not in same]

    def same_lengths(self, task: Task) -> list[int]:
        """The lengths at which texts that are cut gave every answer that they gave at the shorter length before."""
        if task.kind != "text" or task.lengths != "cut":
            return []
        pairs = itertools.pairwise(self._results(task).items())
        return [length for (_, before), (length, results) in pairs if results.items() <= before.items()]

    def _results(self, task: Task) -> dict[int, dict[tuple[str, int, str], Any]]:
        """What each run measured in each part, by length, the shortest first."""
        results: dict[int, dict[tuple[str, int, str], Any]] = {}
        for run in self.done:
            for test in run["tests"] if run["task"] == task.name else ():
                key = (run["scheme"], run["seed"], test["part"])
                results.setdefault(test["length"], {})[key] = test.get("units", test.get("skipped"))
        return dict(sorted(results.items()))

    def home_length(self, task: Task) -> int:
        """The tested length that is the train length, or the next one to it."""
        train = self.plan.train_length_of(task)
        lengths = self.lengths(task)
        return min((length for length in lengths if length >= train), default=lengths[-1])

    def curve_parts(self, task: Task) -> tuple[str, ...] | None:
        """The parts over which scores of several lengths are means: those tested at the train length and the longest.

        None: there are none (examples by length), and each length has its own.
        """
        longest = self.parts(task, self.lengths(task)[-1])
        return tuple(part for part in self.parts(task, self.home_length(task)) if part in longest) or None

    def sample(self, task: Task, scheme: str, length: int, part: Parts = None) -> Sample | None:
        """A scheme's values for a part, or the mean over several, None: over all; None where it has none."""
        key = (task.name, scheme, length, part)
        if key not in self._samples:
            wanted = self.parts(task, length) if part is None else [part] if isinstance(part, str) else list(part)
            # The same texts, cut to each length, are drawn together: what length brings is paired by text.
            drawn = "" if task.kind == "text" and task.lengths == "cut" else f" {length}"
            by_seed = self._outcomes(task, scheme, length, wanted)
            whole = {seed: tests for seed, tests in by_seed.items() if tests and tests.keys() >= set(wanted)}
            scores = {
                seed: {f"{task.name} {name}{drawn}": tests[name] for name in wanted} for seed, tests in whole.items()
            }
            learned = self._which_learned(task, scheme, length, whole)
            self._samples[key] = Sample.of(scores, learned) if scores else None
        return self._samples[key]

    def _which_learned(
        self, task: Task, scheme: str, length: int, by_seed: Mapping[int, Mapping[str, Outcome]]
    ) -> np.ndarray | None:
        """For each seed (in order) and part whether the run learned it; see `Sample.learned`."""
        if scheme not in self.schemes or _cannot_learn(scheme, by_seed.values()):
            return None
        chance = {part: self._chance(task, length, part) for tests in by_seed.values() for part in tests}
        rows = [
            [has_learned(outcome, chance[part]) for part, outcome in sorted(tests.items())]
            for _, tests in sorted(by_seed.items())
        ]
        return None if any(None in row for row in rows) else np.array(rows)

    def _chance(self, task: Task, length: int, part: str) -> Outcome | None:
        """What the majority reaches (of a probe its usual form alone); unmeasured, one half of each pair of a probe."""
        reference = USUAL_FORM if USUAL_FORM in self.references.get(task.name, {}) else MAJORITY
        measured = next(iter(self._outcomes(task, reference, length, [part]).values()), {}).get(part)
        if measured is None and task.kind == "probes":
            by_scheme = (self._outcomes(task, scheme, length, [part]).values() for scheme in self.schemes)
            outcome = next(tests[part] for by_seed in by_scheme for tests in by_seed if tests)
            return replace(outcome, units=outcome.units[:, 1:] * (0.5, 1.0))
        return measured

    def _outcomes(self, task: Task, scheme: str, length: int, parts: Collection[str]) -> dict[int, dict[str, Outcome]]:
        """What a scheme did in each of the parts, by seed."""
        return {
            run["seed"]: {
                test["part"]: _read(test["metric"], tuple(test["units"].items()))
                for test in run["tests"]
                if test["length"] == length and test["part"] in parts and "units" in test
            }
            for run in self.runs(task, scheme)
        }

    def learned(self, task: Task, scheme: str, length: int, part: str) -> Learned | None:
        """How many runs of how many learned a part, see `has_learned`; None: that can't be said."""
        key = (task.name, scheme, length, part)
        if key not in self._learned:
            by_seed = self._outcomes(task, scheme, length, [part]).values()
            chance = self._chance(task, length, part)
            learned = [has_learned(tests[part], chance) for tests in by_seed if tests]
            known = bool(learned) and None not in learned
            self._learned[key] = Learned(sum(map(bool, learned)), len(learned)) if known else None
        return self._learned[key]

    def is_all_or_none(self, task: Task, length: int, part: str) -> bool:
        """Whether some runs learned a part and others didn't."""
        counts = (self.learned(task, scheme, length, part) for scheme in self.schemes)
        known = [count for count in counts if count is not None]
        return 0 < sum(count.runs for count in known) < sum(count.of for count in known)

    def why_not(self, task: Task, scheme: str, length: int) -> str:
        """The reason why a scheme has no score at a length."""
        for run in self.runs(task, scheme):
            for test in run["tests"]:
                if test["length"] == length and "skipped" in test:
                    return str(test["skipped"])
        return "not run"

    def score(self, task: Task, scheme: str, length: int, part: Parts = None) -> Interval | None:
        """The mean over seeds with its interval."""
        sample = self.sample(task, scheme, length, part)
        return None if sample is None else interval(sample)

    @property
    def contrasts(self) -> list[str]:
        """The schemes that each other one is compared with: the baseline and, from scratch, the default scheme."""
        default = PosEncConfig().position_embedding_type
        names = [self.plan.baseline, *([default] if self.plan.pretrained is None else [])]
        return [name for name in dict.fromkeys(names) if name in self.schemes]

    def contrasts_of(self, task: Task) -> list[str]:
        """The same for a task: the control is compared with the baseline alone."""
        return [name for name in self.contrasts if task.kind != "halves" or name == self.plan.baseline]

    def differences(
        self, task: Task, length: int, part: Parts = None, other: str | None = None
    ) -> dict[str, Difference]:
        """Each scheme against `other` (None: the baseline); the p-values are corrected for their number.

        The baseline isn't compared twice: it isn't among those that are compared with another scheme.
        """
        against = self._against(other or self.plan.baseline, task, length, part)
        return holm({name: value for name, value in against.items() if name != self.plan.baseline})

    def linear(self, task: Task, length: int, part: Parts = None) -> dict[str, float]:
        """What the baselines that were measured (but the majority) reach on the test.

        First comes what has to be beaten: the best on development data or, where that wasn't measured, on the test.
        """
        known = [name for name in TO_BEAT if name in self.references.get(task.name, {})]
        scores = {name: self.score(task, name, length, part) for name in known}
        means = {name: score.mean for name, score in scores.items() if score is not None}
        values = {name: self._on_development(task, name, length, part) for name in means}
        chosen_on = {name: value for name, value in values.items() if value is not None}
        worth = chosen_on if chosen_on.keys() == means.keys() else means
        return dict(sorted(means.items(), key=lambda item: worth[item[0]], reverse=True))

    def _on_development(self, task: Task, name: str, length: int, part: Parts) -> float | None:
        """A baseline's mean on the development data of these parts, or of all where these have none."""
        measured = self.references[task.name][name].get("development", {})
        values = {key: value for key, value in measured.items() if value is not None}
        wanted = self.parts(task, length) if part is None else [part] if isinstance(part, str) else part
        shown = [value for key, value in values.items() if key in wanted] or list(values.values())
        return float(np.mean(shown)) if shown else None

    def above(self, task: Task, length: int, part: Parts = None) -> dict[str, Difference]:
        """Each scheme against the first of these baselines, on the same examples; corrected for their number."""
        best = next(iter(self.linear(task, length, part)), None)
        return {} if best is None else holm(self._against(best, task, length, part))

    def _against(self, name: str, task: Task, length: int, part: Parts) -> dict[str, Difference]:
        other, samples = self.sample(task, name, length, part), self._samples_at(task, length, part)
        if other is None:
            return {}
        return paired({scheme: (sample, other) for scheme, sample in samples.items() if scheme != name})

    def _samples_at(self, task: Task, length: int, part: Parts = None) -> dict[str, Sample]:
        samples = {scheme: self.sample(task, scheme, length, part) for scheme in self.schemes}
        return {scheme: sample for scheme, sample in samples.items() if sample is not None}

    def differences_by_part(self, length_of: Callable[[Task], int]) -> dict[tuple[str, str, str], Difference]:
        """Each scheme against the baseline in each part of each task: one family, corrected together."""
        differences = {}
        for task in self.tasks:
            for part in self.parts(task, length_of(task)):
                for scheme, value in self._against(self.plan.baseline, task, length_of(task), part).items():
                    differences[task.name, part, scheme] = value
        return holm(differences)

    def changes(self, task: Task, start: int, end: int) -> dict[str, Difference]:
        """Each scheme at one length minus itself at another: what longer inputs cost; corrected for their number.

        Each run is compared with itself: that others may not learn is no reason for a change.
        """
        before, after = (self._samples_at(task, length, self.curve_parts(task)) for length in (start, end))
        both = [scheme for scheme in before if scheme in after]
        return holm(paired({scheme: (replace(after[scheme], learned=None), before[scheme]) for scheme in both}))

    def ranking(self, task: Task, length: int) -> list[tuple[str, Interval]]:
        """The schemes with a value, the best first."""
        return self._ranked(task, length, self.schemes)

    def rows(self, task: Task, length: int) -> list[tuple[str, Interval]]:
        """The ranking, with what every scheme has to beat at its place."""
        return self._ranked(task, length, [*self.schemes, *self.references.get(task.name, {})])

    def _ranked(self, task: Task, length: int, names: Iterable[str]) -> list[tuple[str, Interval]]:
        scores = ((name, self.score(task, name, length)) for name in names)
        rows = [(name, score) for name, score in scores if score is not None]
        return sorted(rows, key=lambda row: row[1].mean, reverse=True)

    def unbeaten(self, task: Task, length: int) -> tuple[str, Interval] | None:
        """A baseline that no scheme's mean is above."""
        rows = self.rows(task, length)
        return rows[0] if rows and rows[0][0] in self.references.get(task.name, {}) else None

    def pictures(self) -> dict[str, Path]:
        """A picture of what each scheme learned, from its first run that has one."""
        paths: dict[str, Path] = {}
        for run in self.done:
            path = self.folder / RUNS_NAME / name_of(run) / PICTURE_NAME
            if path.is_file() and run["scheme"] not in paths:
                paths[run["scheme"]] = path
        return {scheme: paths[scheme] for scheme in self.schemes if scheme in paths}


@lru_cache(maxsize=4096)
def _read(metric: str, units: tuple[tuple[str, str], ...]) -> Outcome:
    """A test's outcome; tables and verdicts ask for the same ones again and again."""
    return from_dict(metric, dict(units))


def _cannot_learn(scheme: str, runs: Iterable[Mapping[str, Outcome]]) -> bool:
    """Whether that a scheme learns nothing isn't left to chance: pairs of the same words, to a scheme without order."""
    if not getattr(SCHEMES.get(scheme), "order_blind", False):
        return False
    outcomes = (outcome for tests in runs for outcome in tests.values())
    return all(outcome.metric == "accuracy" and bool((outcome.units == (1, 2)).all()) for outcome in outcomes)
