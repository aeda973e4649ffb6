"""The report of a comparison: one table, pictures, a few sentences, the tests."""

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd

from ..data.reading import counted
from ..errors import UserError
from ..files import expanded, write_text
from ..markdown import code, markdown_table, plain, render
from ..model.configuration_posenc import PosEncConfig
from ..schemes.describe import position_rates, rates_in_words
from ..schemes.plots import PALETTE, save_figure
from . import statistics
from .baselines import BASELINES
from .plan import Plan
from .results import RUNS_NAME, load_plan, read_table, write_table
from .statistics import Contrast, Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALL, _DPI = 8, 130
_LINES = ((0, (1, 2)), "--", "-", "-.", (0, (6, 1, 1, 1, 1, 1)))
"""Of the baselines in pictures."""
_APART = 0.01
"""A baseline's line isn't drawn that near to another one's, of which it would hide the dashes."""


@dataclass(frozen=True)
class Column:
    """A column of the table of scores: some tasks at a length, or one part of a task."""

    title: str
    tasks: tuple[str, ...]
    length: int
    part: str | None
    scores: dict[str, dict[int, float]]
    """By scheme or baseline, by seed."""

    @cached_property
    def means(self) -> dict[str, float]:
        """The means over seeds, the best first."""
        means = {name: fmean(of_seed.values()) for name, of_seed in self.scores.items()}
        return dict(sorted(means.items(), key=lambda item: -item[1]))


class Summary:
    """The results of a folder, as tables and sentences.

    Attributes:
        folder: where the results are.
        plan: what was compared: of the seeds only those without a missing run, unless each lacks one.
        table: the results of these seeds.
        missing: the runs of the plan that are missing, by their names.
        is_whole: whether all compared seeds have all runs.
        contrasts: the tests.
        baselines: those that were measured.
        order: the schemes, the best mean first.
    """

    def __init__(self, folder: Path, plan: Plan, table: pd.DataFrame, missing: list[str]) -> None:
        """Takes all results of a folder."""
        self.folder, self.plan, self.table, self.missing = folder, plan, table, missing
        lacking = {run.seed for run in plan.runs() if run.name in missing}
        whole = tuple(seed for seed in self.plan.seeds if seed not in lacking)
        self.is_whole = bool(whole)
        if lacking and whole:  # else a mean over some seeds would stand beside one over others
            self.plan = replace(self.plan, seeds=whole)
            self.table = self.table[self.table["seed"].isna() | self.table["seed"].isin(whole)]
        self.contrasts = statistics.contrasts(self.plan, self.table)
        self.baselines = [name for name in BASELINES if (self.table["scheme"] == name).any()]
        tasks = next(iter(self.plan.tested_groups.values()), (self.plan.tasks[0].name,))
        ranked = self._column("", tasks, self.plan.home_length).means
        self.order = [name for name in dict.fromkeys((*ranked, *self.plan.schemes)) if name in self.plan.schemes]

    @classmethod
    def of(cls, folder: str | Path) -> "Summary":
        """Reads a folder of `compare`.

        Raises:
            UserError: it holds no results, or damaged ones.
        """
        return cls(Path(expanded(folder)), load_plan(folder), *read_table(folder))

    def _column(self, title: str, tasks: tuple[str, ...], length: int, part: str | None = None) -> Column:
        table = self.table if part is None else self.table[self.table["part"] == part]
        scores = {
            name: statistics.group_scores(table, tasks, name, length) for name in (*self.baselines, *self.plan.schemes)
        }
        return Column(title, tasks, length, part, {name: of_seed for name, of_seed in scores.items() if of_seed})

    def columns(self, length: int) -> list[Column]:
        """The columns of the table at a length: tasks, and groups of several; of a task with parts these, too."""
        columns = []
        for task in self.plan.tasks:
            rows = self.table[(self.table["task"] == task.name) & (self.table["length"] == length)]
            parts = list(dict.fromkeys(rows["part"]))
            columns += [self._column(part, (task.name,), length, part) for part in parts if len(parts) > 1]
            if parts:
                title = task.name if len(parts) == 1 else f"mean of {task.name}"
                columns.append(self._column(title, (task.name,), length))
        groups = {name: tasks for name, tasks in self.plan.tested_groups.items() if len(tasks) > 1}
        return columns + [self._column(f"mean: {name}", tasks, length) for name, tasks in groups.items()]

    def longer_columns(self) -> list[Column]:
        """Every task at the lengths that aren't the train length."""
        lengths = [length for length in self.plan.lengths if length != self.plan.home_length]
        made = [self._column(f"{t.name}, {n:,} tokens", (t.name,), n) for t in self.plan.tasks for n in lengths]
        return [column for column in made if column.scores]

    def score_table(self, columns: Sequence[Column], cost: bool = False) -> str:
        """Scores: baselines above a line, schemes sorted by their mean, the highest in bold.

        Args:
            columns: what is scored.
            cost: whether seconds and weights stand beside them.
        """
        rows = {name: [plain(name)] for name in self.baselines} | {name: [code(name)] for name in self.order}
        head = ["", *(plain(column.title) for column in columns)]
        for column in columns:
            most = max((column.means[name] for name in self.order if name in column.means), default=None)
            for name, row in rows.items():
                text = self._cell(column, name)
                row.append(f"**{text}**" if name in self.order and column.means.get(name, "") == most else text)
        if len(self.plan.seeds) > 1 == len(columns):
            head.append("95 % interval")
            for name, row in rows.items():
                row.append(ends(self.interval(columns[0], name)))
        if cost:
            head += ["seconds a run", "weights"]
            of_scheme = self.table.drop_duplicates(["task", "scheme", "seed"]).groupby("scheme")
            seconds, weights = of_scheme["seconds"].median(), of_scheme["parameters"].max()
            for name, row in rows.items():
                has_runs = name in self.order and name in seconds
                row += [f"{seconds[name]:,.0f}", f"{weights[name]:,}"] if has_runs else ["", ""]
        lines = [*rows.values()]
        lines[len(self.baselines) : len(self.baselines)] = [["—"] * len(head)] * bool(self.baselines)
        return markdown_table(head, lines, "l" + "r" * (len(head) - 1))

    def _cell(self, column: Column, name: str) -> str:
        """The mean and, where some runs are above the majority and others aren't, how many."""
        if name not in column.means:  # the scheme's table ends before, or nothing was run
            rows = self.table[(self.table["scheme"] == name) & (self.table["length"] == column.length)]
            return "too long" if rows[rows["task"].isin(column.tasks)]["score"].isna().any() else ""
        text = f"{column.means[name]:.3f}"
        if name in self.plan.schemes and len(column.tasks) == 1 and column.part is None:
            count = statistics.above_majority(self.table, column.tasks[0], name, column.length)
            text += f" {count[0]}/{count[1]}" if count is not None and count[0] < count[1] else ""
        return text

    def interval(self, column: Column, name: str) -> Interval | None:
        """The mean over seeds with its interval; None: there is no score."""
        if name not in column.scores:
            return None
        metric = next(task.metric for task in self.plan.tasks if task.name == column.tasks[0])
        made = statistics.mean_difference([[*column.scores[name].values()]])[0]
        least = 0.0 if metric == "accuracy" else -1.0
        within = (None if end is None else min(max(end, least), 1.0) for end in (made.low, made.high))
        return Interval(made.mean, *within)

    def test_table(self) -> str:
        """Every planned contrast: a row for each group, length and scheme, two columns for each reference."""
        references = self.plan.references
        rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for contrast in self.contrasts:
            where = (plain(contrast.group), f"{contrast.length:,}", code(contrast.scheme))
            rows.setdefault(where, {})[contrast.reference] = [difference(contrast.interval), outcome(contrast)]
        head = ["tasks", "tokens", "scheme"]
        head += [text for name in references for text in (f"minus {code(name)}", "verdict")]
        lines = [
            [*where, *(text for name in references for text in tests.get(name, ["", ""]))]
            for where, tests in rows.items()
        ]
        return markdown_table(head, lines, "lrl" + "rl" * len(references))

    def difference_table(self) -> str | None:
        """Each scheme minus the reference in each task, with intervals and no verdict; None: there is one task."""
        columns = [column for column in self.columns(self.plan.home_length) if len(column.tasks) == 1]
        if len(columns) < 2 or len(self.plan.seeds) < 2:
            return None
        reference = self.plan.references[0]
        rows = []
        for name in (name for name in self.order if name != reference):
            rows.append([code(name)])
            for column in columns:
                pairs = statistics.paired(column.scores.get(name, {}), column.scores.get(reference, {}))
                rows[-1].append(difference(statistics.mean_difference([pairs])[0]) if pairs else "")
        return markdown_table((f"minus {code(reference)}", *(plain(column.title) for column in columns)), rows)

    def sentences(self) -> Iterator[str]:
        """Answers the plan's question: which scheme, by how much, and how sure."""
        for group, tasks in self.plan.tested_groups.items():
            column = self._column(group, tasks, self.plan.home_length)
            below, ranked = ([n for n in column.means if n in names] for names in (self.baselines, self.order))
            if not ranked:
                continue
            (best, second), top = [*ranked, ""][:2], (below or [""])[0]
            here = [c for c in self.contrasts if (c.group, c.length) == (group, self.plan.home_length)]
            leader = f"{code(best)} has the highest mean of the schemes, {column.means[best]:.3f}"
            for c in here:
                if c.scheme == best:
                    leader += f"; {difference(c.interval)} against {code(c.reference)}, {c.verdict}"
                elif (c.scheme, c.reference) == (second, best):
                    leader += f"; the next, {code(second)}, has {difference(c.interval)} against it, {c.verdict}"
            ahead = top and column.means[top] > column.means[best]
            title = f"{plain(group)}: {plain(top)}, a baseline, is ahead" if ahead else plain(group)
            known = f" The best baseline, {plain(top)}, has {column.means[top]:.3f}." if top else ""
            way_out = " Take it, more rows, or pretrained weights." if ahead else ""
            yield f"**{title}**{'.' if ahead else ':'} {leader}.{known}{way_out}"
        for reference in self.plan.references:
            tested = [c for c in self.contrasts if c.reference == reference and c.corrected is not None]
            if tested:
                differing = "; ".join(self._differing(tested)) or "no scheme is shown to differ"
                yield f"Compared with {code(reference)}: {differing}."

    def _differing(self, tested: Sequence[Contrast]) -> Iterator[str]:
        """The schemes that differ, by verdict, group and length."""
        differing = [contrast for contrast in tested if contrast.is_found]
        for verdict, group, length in dict.fromkeys((c.verdict, c.group, c.length) for c in differing):
            members = [c for c in differing if (c.verdict, c.group, c.length) == (verdict, group, length)]
            members.sort(key=lambda c: -abs(c.interval.mean))
            names = ", ".join(f"{code(c.scheme)} ({c.interval.mean:+.3f})" for c in members)
            at = f" at {length:,} tokens" if len(statistics.tested_lengths(self.plan)) > 1 else ""
            yield f"{verdict} on {plain(group)}{at} {names}"

    def pictures(self) -> "dict[str, Figure]":
        """The pictures, by file name: scores at the train length and, where there are more, against the length."""
        pictures = {"scores.png": self._draw_scores()}
        if len(self.plan.lengths) > 1:
            pictures["lengths.png"] = self._draw_lengths()
        for figure in pictures.values():
            drawn = [axes.get_legend_handles_labels() for axes in figure.axes]
            lines = {label: line for of_axes in drawn for line, label in zip(*of_axes, strict=True)}
            figure.legend(lines.values(), lines, fontsize=_SMALL, loc="outside lower center", frameon=False, ncols=5)
        return pictures

    def _draw_scores(self) -> "Figure":
        """A panel for each column, the schemes in one order in all."""
        columns = [column for column in self.columns(self.plan.home_length) if len(column.tasks) == 1]
        wide = min(len(columns), 3)
        height = 0.7 + -(-len(columns) // wide) * (0.5 + 0.19 * len(self.order))
        figure = _panels([column.title for column in columns], wide, 1.2 + 2.3 * wide, height)
        for axes, column in zip(figure.axes, columns, strict=False):
            for place, scheme in enumerate(self.order):
                if (interval := self.interval(column, scheme)) is not None:
                    low, high = (interval.mean if end is None else end for end in (interval.low, interval.high))
                    axes.plot([low, high], [place, place], color=PALETTE[0], linewidth=1.4)
                    axes.plot([interval.mean], [place], "o", color=PALETTE[0], markersize=4)
            drawn: list[float] = []
            for line, name in [*zip(_LINES, self.baselines, strict=False)][::-1]:  # the strongest first
                mean = column.means.get(name)
                if mean is not None and all(abs(mean - other) > _APART for other in drawn):
                    axes.axvline(mean, color="0.35", linestyle=line, linewidth=1, zorder=0, label=name)
                    drawn.append(mean)
            axes.set_yticks(range(len(self.order)), self.order)
            axes.set_ylim(len(self.order) - 0.5, -0.5)
        return figure

    def _draw_lengths(self) -> "Figure":
        """A panel for each task: means against the length of the test."""
        tasks = [task.name for task in self.plan.tasks]
        figure = _panels(tasks, 1, 6.5, 0.9 + 2.6 * len(tasks))
        for axes, task in zip(figure.axes, tasks, strict=True):
            columns = [self._column("", (task,), length) for length in self.plan.lengths]
            for scheme in self.order:
                points = {column.length: column.means[scheme] for column in columns if scheme in column.means}
                if len(points) < 2:  # a table of positions that ends: the dots of several would look alike
                    continue
                place = len(axes.lines)
                style, colour = ("-", "--", ":")[place // len(PALETTE) % 3], PALETTE[place % len(PALETTE)]
                axes.plot([*points], [*points.values()], style, color=colour, marker="o", markersize=3, label=scheme)
            axes.axvline(self.plan.train_length, color="0.7", linewidth=0.8, zorder=0)
            axes.set_xscale("log", base=2)
            axes.set_xticks(self.plan.lengths, [f"{length:,}" for length in self.plan.lengths])
            axes.minorticks_off()
            axes.set_xlabel("tokens (the line: the train length)", fontsize=_SMALL)
        return figure


def _panels(titles: Sequence[str], wide: int, width: float, height: float) -> "Figure":
    """A figure of this many inches with a panel for each title, so many in a row."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Reports need matplotlib. Install it: pip install matplotlib") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.subplots(-(-len(titles) // wide), wide, squeeze=False, sharey=wide > 1)
    for axes, title in zip_longest(figure.axes, titles):
        axes.set_visible(title is not None)
        axes.set_title(title, fontsize=_SMALL + 1, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=_SMALL)
        axes.grid(axis="both", color="0.93")
    return figure


def write_report(summary: Summary, path: Path) -> None:
    """Writes the report, and its pictures and the table of results beside it.

    Raises:
        UserError: there is no run, or matplotlib isn't installed.
    """
    if summary.table["seed"].isna().all():
        raise UserError(f"{str(summary.folder)!r} holds no run of its plan. Run `hf-posenc compare` first.")
    pictures = summary.pictures()
    for name, figure in pictures.items():
        save_figure(figure, path.with_name(name), dpi=_DPI)
    write_table(summary.folder, path.parent)
    write_text(path, render_report(summary, [*pictures]))


def render_report(summary: Summary, pictures: Sequence[str]) -> str:
    """The Markdown."""
    plan, folder, runs = summary.plan, summary.folder, summary.table.dropna(subset="seed")
    counts = dict.fromkeys(plan.train_examples_of(task) for task in plan.tasks)
    tests = runs.groupby(["part", "length"])["examples"].first()
    table = summary.score_table(summary.columns(plan.home_length), cost=True)
    longer = summary.score_table(columns) if (columns := summary.longer_columns()) else ""
    there = shlex.quote(folder.as_posix())
    return render(
        Path(__file__).with_name("report.md.jinja"),
        c=summary,
        plan=plan,
        pictures=pictures,
        table=table,
        longer=longer,
        mixed=re.search(r"(\d+/\d+)[* |]", table + longer),  # a score that describes no run
        counted=counted,
        at_most=at_most,
        statistics=statistics,
        about=BASELINES,
        runs=runs,
        rows=" or ".join("all" if count is None else f"{count:,}" for count in counts),
        examples=" to ".join(dict.fromkeys(f"{count:,}" for count in (min(tests), max(tests)))),
        error=0.5 / min(tests) ** 0.5,
        rates=_rates_in_words(plan),
        there=there,
        own=there
        if (folder / RUNS_NAME).is_dir()
        else shlex.quote(f"results/{folder.name}"),  # none can be added to a table alone
    )


def _rates_in_words(plan: Plan) -> str:
    """The schemes whose weights learn at another rate than the encoder, in words."""
    rates: dict[str, float] = {}
    for scheme in plan.schemes:
        with contextlib.suppress(ValueError):  # one of the user's own, whose file isn't here
            fields = {"position_embedding_kwargs": plan.scheme_kwargs.get(scheme)}
            rates |= position_rates(PosEncConfig.from_size("tiny", position_embedding_type=scheme, **fields))
    return rates_in_words(rates)


def ends(interval: Interval | None, sign: str = "") -> str:
    """The ends of an interval, `[0.897, 0.925]`; nothing of one seed."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"[{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def difference(interval: Interval) -> str:
    """A difference with its interval, `+0.014 [-0.003, +0.031]`; of one seed without."""
    return f"{interval.mean:+.3f} {ends(interval, '+')}".rstrip()


def outcome(contrast: Contrast) -> str:
    """A verdict with its p-value, the gap that is found and, where nothing was, how many seeds would."""
    if contrast.corrected is None or contrast.gap is None or contrast.seeds is None:
        return contrast.verdict
    needed = "" if contrast.is_found else f"; {at_most(contrast.seeds, statistics.MOST_SEEDS)} seeds"
    return f"{contrast.verdict} (p {contrast.corrected:.2g}; gap {at_most(contrast.gap, 1)}{needed})"


def at_most(value: float, most: int) -> str:
    """A gap or a number of seeds; `over 1`, `over 100`."""
    return f"over {most}" if value > most else str(value) if isinstance(value, int) else f"{value:.3f}"
