"""The report of a comparison: Markdown, with pictures beside it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from hf_posenc.files import write_bytes, write_text
from hf_posenc.markdown import code, markdown_table, plain
from hf_posenc.schemes.describe import describe_schemes

from .charts import are_many, curve_chart, length_chart, metric_name, ranking_chart
from .findings import (
    NOTHING,
    baseline_warning,
    findings,
    gap_number,
    gap_text,
    in_brackets,
    interval_text,
    learned_text,
    length_heading,
    quoted,
    ranking_heading,
    seeds_number,
    seeds_text,
    text_range,
    what_it_takes,
)
from .plan import Task
from .power import power
from .probes import PROBES, USUAL
from .records import name_of
from .statistics import ALPHA, LEARNED, UNDECIDED, Difference
from .study import Study

REPORT_NAME, PICTURES_NAME = "report.md", "report_pictures"


@dataclass(frozen=True)
class Picture:
    """A picture with alternative text, as it is, and a caption."""

    name: str
    png: bytes
    text: str
    caption: str

    def __str__(self) -> str:
        """The Markdown that shows it."""
        return f"![{plain(self.text)}]({PICTURES_NAME}/{self.name}.png)\n\n*{self.caption}*"


Block = str | Picture
"""Markdown, or a picture that goes into a file of its own."""


def write_report(results: str | Path, output: str | Path | None = None) -> Path:
    """Writes `report.md` of a results folder, with the pictures in `report_pictures/`.

    Args:
        results: a folder of `compare`; its runs need not all be done.
        output: the folder for the report. None: the results folder.

    Returns:
        `report.md`.

    Raises:
        UserError: the folder holds no results.
        ImportError: matplotlib isn't installed.
    """
    study = Study.read(results)
    blocks = make_report(study)
    folder = Path(output or results)
    for block in blocks:
        if isinstance(block, Picture):
            write_bytes(folder / PICTURES_NAME / f"{block.name}.png", block.png)
    write_text(folder / REPORT_NAME, "\n\n".join(map(str, blocks)) + "\n")
    return folder / REPORT_NAME


def make_report(study: Study) -> list[Block]:
    """The blocks of a report: headings, paragraphs, lists, tables and pictures."""
    blocks: list[Block] = ["# Positional schemes compared", _introduction(study), _counts(study), *rates(study)]
    if study.failed or study.missing or study.damaged:
        blocks.append(_points(_what_is_lacking(study)))
    sentences = [f"{sentence} [Table](#{anchor(where)})" for where, sentence in findings(study)]
    blocks += ["## What the numbers allow one to say", _points(sentences or [NOTHING])]
    blocks += [_how_to_read(study), *_power(study)]
    if len(study.tasks) + sum(len(study.parts(task)) for task in study.tasks) > 2:
        blocks += _overview(study)
    for task in study.tasks:
        blocks += _task(study, task)
    return [*blocks, *_cost(study), *_schemes(study), *_made_of(study)]


def anchor(text: str) -> str:
    """The fragment that links to a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


def _points(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


# The sections


def _introduction(study: Study) -> str:
    plan = study.plan
    start = "pretrained, converted encoders" if plan.pretrained else f"{code(plan.preset)} encoders from scratch"
    same = "the initial weights (but the scheme's own), the data, their order and the budget are the same; "
    same += "only positions change, and how fast their own parameters learn"
    if plan.pretrained and "{scheme}" in plan.pretrained:
        same = "the data, their order and the budget are the same. Each scheme starts from a checkpoint of its own, "
        same += f"{code(plan.pretrained)}, so how these were made counts, too"
    return (
        f"{len(study.schemes)} schemes, {_count(len(study.tasks), 'task')} and {_count(len(plan.seeds), 'seed')}: "
        f"{len(study.done)} runs, {start}. For a task and a seed {same}. "
        f"Each scheme is compared with {' and with '.join(map(code, study.contrasts or [plan.baseline]))}."
    )


def _counts(study: Study) -> str:
    """Each task's examples, steps, tests, seeds and runs."""
    rows = []
    for task in study.tasks:
        done = [run for run in study.done if run["task"] == task.name]
        trained = {run["train_examples"] for run in done if run.get("train_examples") is not None}
        asked = study.plan.train_examples_of(task)
        shown = trained or ({asked} if asked else set())
        tests = {(test["part"], test["length"]): test["examples"] for run in done for test in run["tests"]}
        rows.append(
            (
                f"[{plain(task.name)}](#{anchor(task.name)})",
                _range(shown) or "all",
                _range({run["steps"] for run in done if "steps" in run}),
                f"{len(tests):,}",
                _range(set(tests.values())),
                f"{len({run['seed'] for run in done})}",
                f"{len(done)} of {len(study.plan.schemes) * len(study.plan.seeds)}",
            )
        )
    return markdown_table(("task", "training examples", "steps", "tests", "examples a test", "seeds", "runs"), rows)


def _range(values: set[int]) -> str:
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)})) if values else ""


def rates(study: Study) -> list[str]:
    """Says whether each scheme has a learning rate of its own, and what follows from that."""
    if study.plan.search:
        return _search(study)
    rates = {run["task"]: run["learning_rate"] for run in study.done}
    shown = "; ".join(f"{rate:g} in {plain(task)}" for task, rate in rates.items())
    if len(set(rates.values())) == 1:
        shown = f"{next(iter(rates.values())):g}"
    return [
        f"**One learning rate for all schemes**: {shown}. It was tuned for none of them, and another may change who is "
        "ahead: `hf-posenc compare --search` chooses a rate for each scheme, on seeds that aren't reported."
    ]


def _search(study: Study) -> list[str]:
    """The chosen learning rates, the rates tried, and the seconds that took."""
    rows, edges = [], []
    for task in study.tasks:
        for scheme in study.schemes:
            for run in study.runs(task, scheme)[:1]:
                rate, search = run["learning_rate"], run["search"]
                tried = ", ".join(f"{name}: {score:.3f}" for name, score in search["scores"].items())
                rows.append((code(scheme), plain(task.name), f"{rate:g}", plain(tried), f"{search['seconds']:,.0f}"))
                numbers = [float(name) for name in search["scores"]]
                if rate in (min(numbers), max(numbers)):
                    edges.append(f"{code(scheme)} in {plain(task.name)}")
    seed = study.done[0]["search"]["seed"]
    text = (
        f"**A learning rate for each scheme**: the best of {len(study.plan.search)} on seed {seed} and on development "
        "data, neither of which is reported; the same budget for each."
    )
    if edges:
        text += f" At the edge of what was tried, so that another may be better still: {', '.join(edges)}."
    return [text, markdown_table(("scheme", "task", "learning rate", "tried", "seconds"), rows)]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _what_is_lacking(study: Study) -> list[str]:
    lines = [f"**Failed**: {code(name_of(run))}: {plain(run['error'])}" for run in study.failed]
    lines += [f"**Damaged, and left out**: {code(name)}: {plain(reason)}" for name, reason in study.damaged.items()]
    if study.missing:
        shown = quoted(study.missing[:6])
        more = f" and {len(study.missing) - 6} others" if len(study.missing) > 6 else ""
        lines.append(f"**Not run yet**: {shown}{more}.")
    return lines


def _how_to_read(study: Study) -> str:
    if len(study.plan.seeds) < 2:
        return "One seed was run: there are no intervals and no comparisons, which need two seeds or more."
    others = " and with ".join(map(code, study.contrasts))
    return (
        "Brackets hold 95 % intervals over seeds and test examples (groups of examples that belong together are drawn "
        f"together). Each scheme is compared with {others}, and at the longest inputs with itself at the train length: "
        f"a paired test of the two schemes alone, p < {ALPHA} after Holm's correction for the number of comparisons "
        "with the same one. The same texts at two lengths are compared in pairs. "
        f"{UNDECIDED.capitalize()} doesn't mean equal: beside it stands the smallest gap that the test finds in 80 % "
        "of cases with the spread measured here, and how many seeds would find the difference that was measured (blank "
        "where the seeds showed no spread, and rough where some runs learned and others didn't). "
        "Where some runs learned a test and others didn't, intervals of means are for seeds like those that ran, and "
        "say nothing of how often a run learns: that is k of n runs, with its exact 95 % interval (a run learned a "
        f"test if p < {LEARNED} against the majority's answers, of a probe against its usual form alone). Of two "
        "schemes one of which always learned and the "
        "other never, 4 seeds tell the better, and 8 where many schemes are compared."
    )


def power_table(study: Study) -> str | None:
    """What each family of comparisons could find, and how many seeds the open ones would take; None: one seed."""
    rows = []
    for row in power(study):
        gaps = sorted(row.gaps.values())
        ends = text_range((gap, gap_text(gap, row.widest)) for gap in gaps)
        seeds = text_range((value, seeds_text(value)) for value in row.seeds.values())
        places = (plain(row.task.name), f"{row.length:,}", code(row.other))
        middle = gap_text(median(gaps), row.widest)
        rows.append((*places, middle, ends, f"{row.undecided} of {row.compared}", seeds))
    head = ("task", "tokens", "compared with", "median gap", "gaps", UNDECIDED, "seeds to decide")
    return markdown_table(head, rows) if rows else None


def _power(study: Study) -> list[str]:
    table = power_table(study)
    if table is None:
        return []
    text = (
        "The smallest true difference that a comparison finds in 80 % of cases, with the spread measured here and "
        f"after correction for all comparisons of its row. {UNDECIDED.capitalize()}: how many weren't told apart, and "
        "with how many seeds differences like those that were measured would be."
    )
    return ["## What this plan can find", text, table]


def _about(task: Task) -> str:
    if task.kind == "halves":
        return (
            "The control: are most words from the first half of the vocabulary? Counting words answers it, so that a "
            "model without positions solves it too. It says nothing about positions."
        )
    if task.kind == "probes":
        names = task.probes or tuple(PROBES)
        return (
            "Generated questions about order, one model for all of them. Examples come in pairs that hold the same "
            "words and have different answers: a model that doesn't see order is right in exactly one half. Each "
            "question has two forms, which tests ask equally often; training asks the second one in "
            f"{100 * (1 - USUAL):.0f} % of the pairs. "
            + " ".join(f"{code(name)}: {PROBES[name].question} ({PROBES[name].needs})." for name in names)
        )
    how = "examples of about that length" if task.lengths == "buckets" else "all examples, cut to that length"
    return f"Text classification on {code(task.data)}; a test length means {how}."


def mean_of(parts: Sequence[str] | None, study: Study, task: Task) -> str:
    """Says what a score averages; None: each length's own parts."""
    every = study.parts(task, study.home_length(task))
    if parts is not None and len(parts) < len(every):
        return f"{'Mean of ' if len(parts) > 1 else ''}{code(', '.join(parts))}"
    return "Mean of the parts"


def _task(study: Study, task: Task) -> list[Block]:
    home, lengths = study.home_length(task), study.lengths(task)
    train = study.plan.train_length_of(task)
    tested = f"tested at {', '.join(f'{n:,}' for n in lengths)}"
    if same := study.same_lengths(task):
        tested += f"; at {', '.join(f'{n:,}' for n in same)} every answer is the same"
    blocks: list[Block] = [
        f"## {plain(task.name)}",
        f"{_about(task)} Trained at up to {train:,} tokens, {tested}.",
    ]
    if not any(study.ranking(task, length) for length in lengths):
        return [*blocks, f"Nothing to rank: {plain(study.why_not(task, study.schemes[0], home))}."]
    metric, several = metric_name(task), len(study.parts(task)) > 1
    if study.ranking(task, home):
        blocks.append(f"### {ranking_heading(task, home)}")
        if (warning := baseline_warning(study, task, home)) is not None:
            blocks.append(warning)
        if several:
            blocks.append("Mean of the parts.")
        picture, about = ranking_chart(study, task, home), f"{task.name}: {metric} by scheme"
        blocks += [
            _ranking_table(study, task, home),
            Picture(f"{task.name}-ranking", picture, about, f"Means, {_bars(study)}."),
        ]
    if len(lengths) > 1:
        blocks.append(f"### {length_heading(task)}")
        if several:
            blocks.append(f"{mean_of(study.curve_parts(task), study, task)}.")
        picture, about = length_chart(study, task), f"{task.name}: {metric} against length"
        caption = f"{metric.capitalize()} at each length, {_bars(study)}{_greys(study)}."
        blocks += [
            markdown_table(("scheme", *(f"{length:,}" for length in lengths)), length_rows(study, task)),
            Picture(f"{task.name}-lengths", picture, about, caption),
        ]
    picture, about = curve_chart(study, task), f"{task.name}: training loss against steps"
    caption = f"Training loss: the mean over seeds; the band reaches from the least to the greatest{_greys(study)}."
    return [
        *blocks,
        f"### {plain(task.name)}: learning curves",
        Picture(f"{task.name}-curves", picture, about, caption),
    ]


def _ranking_table(study: Study, task: Task, length: int) -> str:
    """Each scheme's score, against the baseline in numbers and against the default scheme in a word."""
    others = [other for other in study.contrasts_of(task) if other != study.plan.baseline]
    differences = study.differences(task, length)
    against = {other: study.differences(task, length, other=other) for other in others}
    counts = {scheme: _learned(study, task, length, scheme) for scheme in study.schemes}
    shows = any(counts.values())
    rows, place = [], 0
    for scheme, value in study.rows(task, length):
        name, cells = plain(scheme), ["", "", "", "", "no encoder", *("" for _ in others)]
        if scheme in study.schemes:
            place += 1
            name = f"{place}. {code(scheme)}"
            cells = _against(differences.get(scheme))
            cells = ["", "", "", "", "baseline"] if scheme == study.plan.baseline else cells
            for other in others:
                tested = against[other].get(scheme)
                cells.append("" if tested is None else tested.verdict())
        learned = [counts.get(scheme, "")] if shows else []
        rows.append((name, interval_text(value), *learned, *cells))
    head = (
        *("scheme", metric_name(task), *(["runs that learned it"] if shows else [])),
        *(f"minus {plain(study.plan.baseline)}", "p (Holm)", "smallest gap", "seeds to decide", "verdict"),
        *(f"against {plain(other)}" for other in others),
    )
    return markdown_table(head, rows)


def _learned(study: Study, task: Task, length: int, scheme: str) -> str:
    """How many runs learned a task that has one part, where some did and others didn't."""
    (part, *more) = study.parts(task, length)
    return (
        ""
        if more or not study.is_all_or_none(task, length, part)
        else learned_text(study.learned(task, scheme, length, part))
    )


def _against(difference: Difference | None) -> list[str]:
    """A difference in numbers, what deciding it takes, and the verdict."""
    if difference is None:
        return ["", "", "", "", "not comparable"]
    shown = (interval_text(difference.interval, signed=True), _p(difference))
    return [*shown, gap_number(difference), seeds_number(difference), difference.verdict()]


def length_rows(study: Study, task: Task) -> list[tuple[str, ...]]:
    """A row for each baseline and scheme: its score and interval at each length."""
    rows = []
    for scheme in (*study.references.get(task.name, {}), *study.schemes):
        cells = []
        for length in study.lengths(task):
            value = study.score(task, scheme, length, study.curve_parts(task))
            cells.append(plain(study.why_not(task, scheme, length)) if value is None else interval_text(value))
        rows.append((named(study, scheme), *cells))
    return rows


def named(study: Study, scheme: str) -> str:
    """A scheme in `code`, a baseline in words."""
    return code(scheme) if scheme in study.schemes else plain(scheme)


def _p(difference: Difference) -> str:
    if difference.corrected is None:
        return ""
    return "< 0.001" if difference.corrected < 0.001 else f"{difference.corrected:.3f}"


def _overview(study: Study) -> list[str]:
    """Every scheme's score in every part of every task."""
    differences = study.differences_by_part(study.home_length)
    cells = {scheme: [code(scheme)] for scheme in study.schemes}
    below = {name: [plain(name)] for task in study.tasks for name in study.references.get(task.name, {})}
    head = [""]
    for task in study.tasks:
        home = study.home_length(task)
        for part in study.parts(task, home):
            scores = {scheme: study.score(task, scheme, home, part) for scheme in (*below, *cells)}
            if not any(scores[scheme] for scheme in cells):
                continue
            head.append(plain(part if part.startswith(task.name) else f"{task.name}: {part}"))
            for scheme, row in {**below, **cells}.items():
                score, difference = scores[scheme], differences.get((task.name, part, scheme))
                text = "-" if score is None else f"{score.mean:.3f}"
                row.append(f"**{text}**" if difference is not None and difference.is_found else text)
    if len(head) == 1:
        return []
    text = (
        f"At each task's train length, or the next one tested. Bold: differs from {code(study.plan.baseline)} (Holm "
        "over the whole table)."
    )
    return ["## Tasks and schemes", text, markdown_table(head, [*below.values(), *cells.values()])]


def _bars(study: Study) -> str:
    return "with 95 % intervals" if len(study.plan.seeds) > 1 else "of one seed: there are no intervals"


def _greys(study: Study) -> str:
    return "; the others in grey" if are_many(study) else ""


def _cost(study: Study) -> list[str]:
    """How large the models are, and how long their runs took."""
    text = (
        "How large the models are, and how many seconds their runs took, tests included: the mean, and the sum against "
        "that of `none` with the same seeds. Runs that were resumed are left out. Each run had the machine at another "
        "time, perhaps beside other work."
    )
    blocks = ["## Cost", text]
    for task in study.tasks:
        control, rows = _seconds(study, task, "none"), []
        for scheme in study.schemes:
            for run in study.runs(task, scheme)[:1]:
                sizes = (f"{run['parameters']:,}", f"{run['positional_parameters']:,}")
                seconds = _seconds(study, task, scheme)
                mean = f"{fmean(seconds.values()):,.1f}" if seconds else ""
                both = [seed for seed in seconds if seed in control]
                times = sum(seconds[seed] for seed in both) / sum(control[seed] for seed in both) if both else None
                rows.append((code(scheme), *sizes, mean, "" if times is None else f"{times:.2f}"))
        head = ("scheme", "parameters", "positional", "seconds a run", "times none's")
        blocks += [f"### {plain(task.name)}: cost", markdown_table(head, rows)]
    return blocks


def _seconds(study: Study, task: Task, scheme: str) -> dict[int, float]:
    """What each run of a scheme took, by seed."""
    whole = (run for run in study.runs(task, scheme) if run["seconds"] > 0 and not run.get("resumed"))
    return {run["seed"]: run["seconds"] for run in whole}


def _schemes(study: Study) -> list[Block]:
    """A section for each scheme: what it is, its ranks, and a picture of what it learned."""
    words = {row.name: row.summary for row in describe_schemes()}
    pictures = study.pictures()
    blocks: list[Block] = ["## Schemes"]
    for scheme in study.schemes:
        blocks.append(f"### {code(scheme)}")
        summary = "; ".join(words[part] for part in scheme.split("+") if part in words)
        if summary:
            blocks.append(f"{summary}.")
        blocks.append(_points([_standing(study, task, scheme) for task in study.tasks]))
        if scheme in pictures:
            caption = "What it does after training, of one seed, as `hf-posenc plot` draws it."
            picture = pictures[scheme].read_bytes()
            blocks.append(Picture(f"learned-{scheme}", picture, f"{scheme}, trained", caption))
    return blocks


def _standing(study: Study, task: Task, scheme: str) -> str:
    """A scheme's rank in a task, with a link to the table."""
    home = study.home_length(task)
    ranking = study.ranking(task, home)
    place = next((place for place, (name, _) in enumerate(ranking, start=1) if name == scheme), None)
    if place is None:
        return f"{plain(task.name)}: {plain(study.why_not(task, scheme, home))}."
    difference = study.differences(task, home).get(scheme)
    verdict = ""
    if difference is not None:
        verdict = f"; against {code(study.plan.baseline)}: {difference.verdict()}"
        verdict += in_brackets(what_it_takes([difference]))
    where = f"[{plain(task.name)}](#{anchor(ranking_heading(task, home))})"
    score = f"{metric_name(task)} {interval_text(ranking[place - 1][1])}"
    return f"{where}: place {place} of {len(ranking)} at {home:,} tokens, {score}{verdict}."


def _made_of(study: Study) -> list[str]:
    def every(name: str, key: str) -> str:
        values = {str(run[name].get(key)) for run in study.done}
        return plain(", ".join(sorted(values)))

    versions = ", ".join(f"{plain(name)} {every('versions', name)}" for name in study.done[0]["versions"])
    threads = every("machine", "threads")
    return [
        "## How it was made",
        _points(
            [
                f"Seeds {', '.join(map(str, study.plan.seeds))}; the plan is `plan.json`, each run a `run.json`.",
                f"On {every('machine', 'device')}, {threads} thread{'' if threads == '1' else 's'}.",
                f"Versions: {versions}.",
            ]
        ),
    ]
