"""`compare`, which makes a comparison, and `Comparison`, which holds its results."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import NO_VALUE, UserError, checks_types, renaming
from ..files import expanded
from ..options import OF_SEVERAL_LABELS, READING, Options, json_object, reading_options, words
from ..quiet import alone
from .executor import execute
from .plan import SEARCH_FACTORS, Plan
from .plan_file import PLANNED, read_plan
from .report import write_report
from .results import WRITTEN_NAME, joined_plan, no_table
from .summary import Summary
from .tables import latex_table, score_table
from .tasks import TaskData


@checks_types
@alone()
def compare(
    data: str | Path | Sequence[str | Path] | None = None,
    *,
    output: str | Path,
    plan: str | Path | dict[str, Any] | None = None,
    schemes: str | Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    scheme_file: str | Path | Sequence[str | Path] | None = None,
    reference: str | None = None,
    size: str | None = None,
    pretrained: str | Path | None = None,
    options: dict[str, Any] | str | None = None,
    search: bool = False,
    keep_models: bool = False,
    dry_run: bool = False,
    ray: bool = False,
    **reading: Any,
) -> "Comparison":
    """Compares schemes: the same encoder, data, seeds and budget; only positions change.

    Finished runs are skipped: the same call resumes after Ctrl-C, and adds seeds or schemes to a folder. Several
    processes may share a folder: each run is made by one of them, or of the machines of a Ray cluster. When no run is
    missing, the report is written. Progress is printed, a line for each run.

    Args:
        data: a file, of which a tenth is the test, a folder with train.csv and test.csv, a data set of the Hub,
            `probes` or `halves`, which are generated; or several of these.
        output: folder for the results.
        plan: a YAML file, the name of a plan that is included, such as `quick`, or a dictionary. The other parameters
            go before its fields.
        schemes: names, as a list or with commas, or `all`.
        seeds: how many, or which. None: 5, or as the plan says.
        scheme_file: a Python file with a scheme of your own, or several.
        reference: the scheme that the others are compared with, beside `rope`. None: `none`, or the first one.
        size: of a new encoder: tiny, mini, small, base. None: tiny.
        pretrained: start from a checkpoint, converted to each scheme; or from one for each, `converted/{scheme}`.
        options: of `train`, such as `{"epochs": 3}`; those that the plan has stay as they are if they aren't named.
        search: choose each scheme's learning rate: 3 trials, on a seed and rows that aren't reported.
        keep_models: keep each run's model, in `models`.
        dry_run: read the data, say on standard error what is there, list the runs (`runs` of what is returned), and
            make none.
        ray: give each run to a Ray cluster, as a task: the one that RAY_ADDRESS names, the one of this machine, or a
            new one of this machine alone. Needs the extra `ray`.
        **reading: how `data` is read: `text_column`, `join`, `label_column`, `label_names`, `skip_missing`,
            `delimiter`, `quoting`, `encoding`, `format`.

    Returns:
        The results. A run that failed leaves the others alone: `failed` says why, and the same call tries it again.

    Raises:
        UserError: a parameter or the plan isn't accepted, the data can't be read, or the folder has another plan.
        Interrupted: Ctrl-C. What is finished is kept.
    """
    given = reading_options(reading, OF_SEVERAL_LABELS).changed()
    with renaming(_as_given):
        chosen = read_plan(
            plan or {},
            tasks=_strings(data),
            schemes=words(schemes) if isinstance(schemes, str) else schemes,
            scheme_files=_strings(scheme_file),
            seeds=seeds if seeds is None or isinstance(seeds, int) else list(seeds),
            reference=reference,
            size=size,
            pretrained=pretrained and str(pretrained),
            options={**(json_object("options", options) or {}), **given} or None,
            search=SEARCH_FACTORS if search else None,
        )
        if dry_run:
            joined_plan(chosen, Path(expanded(output)))
            for task in chosen.tasks:
                print(TaskData(chosen, task).check().line, file=sys.stderr)
            return Comparison._planned(output, chosen)
        execute(chosen, output, keep_models=keep_models, ray=ray)
        comparison = Comparison(output)
        if comparison.has_ended:
            comparison.report()
    return comparison


def _strings(given: str | Path | Sequence[str | Path] | None) -> list[str] | None:
    """One path, or several, as strings; None: there is none."""
    if not given:
        return None
    return [str(item) for item in ([given] if isinstance(given, str | Path) else given)]


def _as_given(parameter: str, value: Any) -> tuple[str, Any]:
    """A parameter of `train` as one of `compare`, as a field of a plan, or else as a key of `options`."""
    name, _, key = parameter.partition(".")
    parameters = {*inspect.signature(compare).parameters, *READING} - {OF_SEVERAL_LABELS}
    if name in parameters or name not in Options.__dataclass_fields__:
        return parameter, value
    if name in PLANNED:
        return PLANNED[name], value
    return f"options.{name}", {key: "..." if value is NO_VALUE else value} if key else value


class Comparison:
    """The results of a comparison, as `compare` returns them, or read from its folder.

    Args:
        folder: of the results; nothing is written there but by `report`.

    Attributes:
        folder: the same, as a path.
        table: a row for each task, part, length, scheme and seed, with the score. Baselines stand among the schemes,
            and have no seed. No score: the inputs are longer than the scheme's table.
        findings: the tests of the report as dictionaries: the `difference` between a `scheme` and its `reference` on a
            group of `tasks` at a `length`, the `low` and `high` end of its interval, `p`, both corrected for the number
            of tests, and the `verdict`: better, worse, within the plan's margin, not decided, or why there is no test.
        runs: the names of all runs in their order, those that choose learning rates among them.
        missing: the names of the runs whose results aren't there.
        failed: those of them that failed, and trials that did, with the reason.

    Raises:
        UserError: the folder holds no comparison, or a damaged one.
    """

    @checks_types
    def __init__(self, folder: str | Path) -> None:
        self._hold(Summary.of(folder))

    @classmethod
    def _planned(cls, folder: str | Path, plan: Plan) -> "Comparison":
        """A comparison of which nothing was run."""
        comparison = cls.__new__(cls)
        comparison._hold(Summary(Path(expanded(folder)), plan, no_table(), [run.name for run in plan.runs()]))
        return comparison

    def _hold(self, summary: Summary) -> None:
        self._summary = summary
        self.folder = summary.folder
        self.table = summary.table
        self.missing = summary.missing
        self.failed = summary.failed
        self.runs = [run.name for run in summary.plan.work()]
        self.findings = [contrast.to_dict() for contrast in summary.contrasts]

    @property
    def has_ended(self) -> bool:
        """True where every run is made or failed, and one is made."""
        return self._summary.has_runs and set(self.missing) <= self.failed.keys()

    def __str__(self) -> str:
        """The scores at the train length, as a Markdown table."""
        return score_table(self._summary, self._summary.columns(self._summary.plan.home_length))

    def to_latex(self) -> str:
        """The scores at the train length with their spread over seeds, as a LaTeX table (booktabs)."""
        return latex_table(self._summary)

    @checks_types
    def report(self, path: str | Path | None = None) -> Path:
        """Writes the report in Markdown, with `results.csv` and, where matplotlib is installed, its pictures beside it.

        Args:
            path: of the report. None: `report.md` in the folder of the results.

        Returns:
            The path.

        Raises:
            UserError: there is no run, the path is a folder, or a first report there would replace a file beside it.
        """
        written = self.folder / WRITTEN_NAME if path is None else Path(expanded(path))
        if written.is_dir():
            raise UserError(f"{str(path)!r} is a folder. Give the name of a file, such as report.md.")
        write_report(self._summary, written)
        return written
