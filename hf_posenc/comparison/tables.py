"""The tables of a report, in Markdown."""

from collections.abc import Sequence
from statistics import stdev
from typing import Any

import pandas as pd

from ..data.tables import counted
from ..markdown import code, markdown_table, plain
from . import statistics
from .statistics import Contrast, Interval
from .summary import Column, Summary


def score_table(summary: Summary, columns: Sequence[Column], cost: bool = False) -> str:
    """Scores: baselines above a line, schemes sorted by their mean, the highest in bold.

    Args:
        columns: what is scored.
        cost: whether seconds and weights stand beside them.
    """
    rows = {name: [plain(name)] for name in summary.baselines} | {name: [code(name)] for name in summary.order}
    head = ["", *(plain(column.title) for column in columns)]
    for column in columns:
        most = max((column.means[name] for name in summary.order if name in column.means), default=None)
        for name, row in rows.items():
            text = _cell(summary, column, name)
            row.append(f"**{text}**" if name in summary.order and column.means.get(name, "") == most else text)
    if len(summary.plan.seeds) > 1 == len(columns):
        head.append("95 % interval")
        for name, row in rows.items():
            row.append(ends(summary.interval(columns[0], name)))
    if cost and summary.plan.until_flat is not None:
        head.append("steps, still rising")
        for name, row in rows.items():
            row.append(_ending(summary, name))
    if cost:
        head += ["seconds a run", "weights"]
        of_scheme = summary.table.drop_duplicates(["task", "scheme", "seed"]).groupby("scheme")
        seconds, weights = of_scheme["seconds"].median(), of_scheme["parameters"].max()
        for name, row in rows.items():
            has_runs = name in summary.order and name in seconds
            row += [_whole(seconds[name]), _whole(weights[name])] if has_runs else ["", ""]
    lines = [*rows.values()]
    lines[len(summary.baselines) : len(summary.baselines)] = [["—"] * len(head)] * bool(summary.baselines)
    return markdown_table(head, lines, "l" + "r" * (len(head) - 1))


def _cell(summary: Summary, column: Column, name: str) -> str:
    """The mean and, where some runs are above the majority and others aren't, how many."""
    if name not in column.means:  # the scheme's table ends before, or nothing was run
        rows = summary.table[(summary.table["scheme"] == name) & (summary.table["length"] == column.length)]
        return "too long" if rows[rows["task"].isin(column.tasks)]["score"].isna().any() else ""
    text = f"{column.means[name]:.3f}{_fewer_seeds(summary, column, name)}"
    if name in summary.plan.schemes and len(column.tasks) == 1 and column.part is None:
        count = statistics.above_majority(summary.table, column.tasks[0], name, column.length)
        text += f" {count[0]}/{count[1]}" if count is not None and count[0] < count[1] else ""
    return text


def _fewer_seeds(summary: Summary, column: Column, name: str) -> str:
    """The number of a scheme's seeds where it lacks some, ` (3 seeds)`."""
    seeds = len(column.scores[name])
    lacks_some = name in summary.plan.schemes and seeds < len(summary.plan.seeds)
    return f" ({counted(seeds, 'seed')})" if lacks_some else ""


def _ending(summary: Summary, name: str) -> str:
    """The median of a scheme's steps, how many of its runs were still rising when the cap came, and in which tasks."""
    runs = summary.table[summary.table["scheme"] == name].drop_duplicates(["task", "seed"])
    if runs["steps"].isna().all():
        return ""
    rising = runs[runs["rising"] > 0]
    where = f" ({', '.join(map(plain, rising['task'].unique()))})" * (len(rising) > 0 and len(summary.plan.tasks) > 1)
    return f"{runs['steps'].median():,.0f}, {len(rising)} of {len(runs)}{where}"


def _whole(number: Any) -> str:
    return "" if pd.isna(number) else f"{number:,.0f}"  # every run of it diverged, or went on


def test_table(summary: Summary) -> str:
    """Every planned contrast: a row for each group, length and scheme, two columns for each reference."""
    references = summary.plan.references
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for contrast in summary.contrasts:
        where = (plain(contrast.group), f"{contrast.length:,}", code(contrast.scheme))
        rows.setdefault(where, {})[contrast.reference] = [difference(contrast.interval), outcome(contrast)]
    head = ["tasks", "tokens", "scheme"]
    head += [text for name in references for text in (f"minus {code(name)}", "verdict")]
    lines = [
        [*where, *(text for name in references for text in tests.get(name, ["", ""]))] for where, tests in rows.items()
    ]
    return markdown_table(head, lines, "lrl" + "rl" * len(references))


def difference_table(summary: Summary) -> str | None:
    """Each scheme minus the reference in each task, with intervals and no verdict; None: there is one task."""
    columns = [column for column in summary.columns(summary.plan.home_length) if len(column.tasks) == 1]
    if len(columns) < 2 or len(summary.plan.seeds) < 2:
        return None
    reference = summary.plan.references[0]
    rows = []
    for name in (name for name in summary.order if name != reference):
        rows.append([code(name)])
        for column in columns:
            first, second = column.scores.get(name, {}), column.scores.get(reference, {})
            has_both = first and second
            made = statistics.welch([[*first.values()]], [[*second.values()]])[0] if has_both else None
            rows[-1].append(difference(made) if made else "")
    return markdown_table((f"minus {code(reference)}", *(plain(column.title) for column in columns)), rows)


def latex_table(summary: Summary) -> str:
    """Means at the train length with their standard deviations over seeds, for a paper; needs the package booktabs."""
    cells: dict[str, dict[str, str]] = {}
    for column in summary.columns(summary.plan.home_length):
        most = max((column.means[name] for name in summary.order if name in column.means), default=None)
        cells[column.title] = dict.fromkeys((*summary.baselines, *summary.order), "--")
        for name, of_seed in column.scores.items():
            text = f"{column.means[name]:.3f}"
            text = rf"\textbf{{{text}}}" if name in summary.order and column.means[name] == most else text
            spread = f" ({stdev(of_seed.values()):.3f})" if len(of_seed) > 1 else ""
            cells[column.title][name] = text + spread + _fewer_seeds(summary, column, name)
    commits = ", ".join(sorted(set(summary.table["commit"].dropna())))
    caption = f"Mean score (standard deviation over {counted(len(summary.plan.seeds), 'seed')})"
    style = pd.DataFrame(cells).style.format_index(escape="latex", axis=0).format_index(escape="latex", axis=1)
    caption += f". hf\\_posenc{f', commit {commits}' if commits else ''}."
    return str(style.to_latex(hrules=True, caption=caption, column_format="l" + "r" * len(cells)))


def ends(interval: Interval | None, sign: str = "") -> str:
    """The ends of an interval, `[0.897, 0.925]`; nothing of one seed."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"[{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def difference(interval: Interval) -> str:
    """A difference with its interval, `+0.014 [-0.003, +0.031]`; of one seed without."""
    return f"{interval.mean:+.3f} {ends(interval, '+')}".rstrip()


def outcome(contrast: Contrast) -> str:
    """A verdict with its p-value."""
    return contrast.verdict if contrast.corrected is None else f"{contrast.verdict} (p {contrast.corrected:.2g})"


def gaps_in_words(summary: Summary) -> str:
    """The smallest difference that is found in each group, and at each length: `0.023 on order, over 1 on words`."""
    lengths = statistics.tested_lengths(summary.plan)
    tested = {(c.group, c.length) for c in summary.contrasts if c.corrected is not None}
    gaps = statistics.smallest_gaps(summary.plan, summary.table)
    return ", ".join(
        f"{'over 1' if gap > 1 else f'{gap:.3f}'} on {plain(group)}"
        + (f" at {length:,} tokens" if len(lengths) > 1 else "")
        for (group, length), gap in gaps.items()
        if (group, length) in tested
    )
