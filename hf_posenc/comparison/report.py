"""The report of a comparison: Markdown with pictures beside it, and one HTML page that holds everything."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_posenc.training.checkpoints import write_bytes, write_text

from .charts import cost_chart, curve_chart, heat_chart, length_chart, metric_name, ranking_chart
from .plan import Task
from .probes import PROBES
from .statistics import ALPHA, NO_EVIDENCE, Difference, Interval
from .study import Study, lower_is_better

MARKDOWN_NAME, HTML_NAME, PICTURES_NAME = "report.md", "report.html", "report_pictures"
TITLE = "Positional schemes compared"


@dataclass(frozen=True)
class Heading:
    """A line above a section."""

    level: int
    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` and **bold** as in Markdown."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table; the first column stands left, numbers right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """A picture with words for those who don't see it."""

    name: str
    png: bytes
    text: str
    wide: bool = False
    """Whether a narrow screen had better scroll than shrink it."""


Block = Heading | Text | Points | Table | Picture


def write_report(results: str | Path, output: str | Path | None = None) -> tuple[Path, Path]:
    """Writes `report.md` (pictures in `report_pictures/`) and `report.html` of a results folder.

    Args:
        results: a folder of `compare`; its runs need not all be done.
        output: the folder for the report. None: the results folder.

    Returns:
        The two files.

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
    write_text(folder / MARKDOWN_NAME, to_markdown(blocks))
    write_text(folder / HTML_NAME, to_html(blocks))
    return folder / MARKDOWN_NAME, folder / HTML_NAME


def make_report(study: Study) -> list[Block]:
    """All that a report says."""
    blocks: list[Block] = [Heading(1, TITLE), Text(_introduction(study))]
    if study.failed or study.missing:
        blocks.append(Points(tuple(_what_is_lacking(study))))
    blocks += [Heading(2, "What the numbers allow one to say"), Points(tuple(conclusions(study)))]
    blocks.append(Text(_how_to_read(study)))
    if len(study.tasks) + sum(len(study.parts(task)) for task in study.tasks) > 2:
        blocks += _heat(study)
    for task in study.tasks:
        blocks += _task(study, task)
    blocks += _cost(study)
    blocks += _learned(study)
    blocks += _made_of(study)
    return blocks


# What it says


def _introduction(study: Study) -> str:
    plan = study.plan
    start = f"`{plan.preset}` encoders from scratch" if plan.pretrained is None else "pretrained, converted encoders"
    return (
        f"{len(study.schemes)} schemes, {_count(len(study.tasks), 'task')} and {_count(len(plan.seeds), 'seed')}: "
        f"{len(study.done)} runs, {start}. For a task and a seed the initial weights (but the scheme's own), the data, "
        f"their order and the budget are the same; only positions change, and how fast their own parameters learn. "
        f"Everything is compared with "
        f"`{plan.baseline}`."
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _what_is_lacking(study: Study) -> list[str]:
    lines = [f"**Failed**: `{run['task']}-{run['scheme']}-seed{run['seed']}`: {run['error']}" for run in study.failed]
    if study.missing:
        shown = ", ".join(f"`{name}`" for name in study.missing[:6])
        more = f" and {len(study.missing) - 6} others" if len(study.missing) > 6 else ""
        lines.append(f"**Not run yet**: {shown}{more}.")
    return lines


def _how_to_read(study: Study) -> str:
    if len(study.plan.seeds) < 2:
        return "One seed was run: there are no intervals and no comparisons, which need two seeds or more."
    return (
        "Brackets hold 95 % intervals: Student's t over seeds, and a bootstrap over test examples (groups of examples "
        f"that belong together are drawn together). A scheme is called better or worse than `{study.plan.baseline}` "
        f"where a paired t-test gives p < {ALPHA} after Holm's correction for the number of comparisons in its table, "
        "the spread over seeds taken to be at least halfway to that of all schemes; else there is "
        f'"{NO_EVIDENCE}", which is not evidence that there is none: with 2 or 3 seeds little can be told. '
        "The scheme with the best mean is compared with the others after correction for all pairs of schemes, and each "
        "scheme at the longest inputs with itself at the train length after correction for the number of schemes."
    )


def conclusions(study: Study) -> list[str]:
    """Sentences on each task, at the train length and at the longest; nothing that the tests don't carry."""
    sentences = []
    for task in study.tasks:
        home, longest = study.home_length(task), study.lengths(task)[-1]
        for length in dict.fromkeys((home, longest)):
            found = study.differences(task, length)
            baseline = study.score(task, study.plan.baseline, length)
            said = _by_verdict(found, lower_is_better(task))
            unable = [scheme for scheme in study.schemes if study.score(task, scheme, length) is None]
            if unable:
                said.append(f"can't be tested: {quoted(unable)}")
            if not said:
                continue
            against = "" if baseline is None else f"against `{study.plan.baseline}` ({baseline.mean:.3f}) "
            sentences.append(
                f"**{task.name}, {length:,} tokens**: {against}{'; '.join(said)}.{_of_the_best(study, task, length)}"
            )
        changes = study.changes(task, home, longest) if longest > home else {}
        if changes and len(study.plan.seeds) > 1:
            said = _by_verdict(changes, lower_is_better(task))
            sentences.append(f"**{task.name}, from {home:,} to {longest:,} tokens**: {'; '.join(said)}.")
    return sentences or ["Nothing: fewer than two schemes have a result at one length."]


def _by_verdict(found: Mapping[str, Difference], lower: bool) -> list[str]:
    """The schemes that are better, worse, and those of which neither can be said."""
    groups: dict[str, list[str]] = {}
    for scheme, value in found.items():
        verdict = value.verdict(lower)
        shown = f" ({value.interval.mean:+.3f})" if verdict in ("better", "worse") else ""
        groups.setdefault(verdict, []).append(f"`{scheme}`{shown}")
    if list(groups) == [NO_EVIDENCE] and len(found) > 1:
        return [f"{NO_EVIDENCE}: all {len(found)}"]
    return [f"{verdict}: {', '.join(groups[verdict])}" for verdict in sorted(groups)]


def rivals(study: Study, task: Task, length: int) -> tuple[str, list[str], list[str]]:
    """The scheme with the best mean, those that it is better than, and those from which it can't be told apart.

    Corrected for all pairs of schemes, since the best one is found by looking at all.
    """
    (best, _), *others = study.ranking(task, length)
    pairs = study.pairs(task, length)
    beaten = []
    for scheme, _ in others:
        found = pairs.get((best, scheme)) or pairs.get((scheme, best))
        if found is not None and found.corrected is not None and found.corrected < ALPHA:
            beaten.append(scheme)
    return best, beaten, [scheme for scheme, _ in others if scheme not in beaten]


def _of_the_best(study: Study, task: Task, length: int) -> str:
    if task.kind == "halves" or len(study.plan.seeds) < 2 or len(study.ranking(task, length)) < 3:
        return ""
    best, beaten, equal = rivals(study, task, length)
    return f" Best mean: `{best}`, {of_rivals(beaten, equal)} (corrected for all pairs)."


def of_rivals(beaten: Sequence[str], equal: Sequence[str]) -> str:
    """What `rivals` found, in words."""
    if not beaten:
        return f"{NO_EVIDENCE} from any other"
    said = f"better than {quoted(beaten) if equal else 'all others'}"
    return f"{said}; {NO_EVIDENCE} from {quoted(equal)}" if equal else said


def quoted(schemes: Sequence[str]) -> str:
    """Schemes in a sentence."""
    return ", ".join(f"`{scheme}`" for scheme in schemes)


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
            "words and have different answers: a model that doesn't see order is right in exactly one half. "
            + " ".join(f"`{name}`: {PROBES[name].question} ({', '.join(PROBES[name].needs)})." for name in names)
        )
    if task.kind == "masked_lm":
        return f"Masked language model on `{task.data}`: the same text in blocks of each length; lower is better."
    how = "examples of about that length" if task.lengths == "buckets" else "all examples, cut to that length"
    return f"Text classification on `{task.data}`; a test length means {how}."


def mean_of(parts: Sequence[str] | None, study: Study, task: Task) -> str:
    """What a score is the mean of; None: of each length's own parts."""
    every = study.parts(task, study.home_length(task))
    if parts is not None and len(parts) < len(every):
        return f"{'Mean of ' if len(parts) > 1 else ''}`{', '.join(parts)}`"
    return "Mean of the parts"


def _task(study: Study, task: Task) -> list[Block]:
    home, lengths = study.home_length(task), study.lengths(task)
    train = study.plan.train_length_of(task)
    blocks: list[Block] = [
        Heading(2, task.name),
        Text(f"{_about(task)} Trained at up to {train:,} tokens, tested at {', '.join(f'{n:,}' for n in lengths)}."),
    ]
    if not any(study.ranking(task, length) for length in lengths):
        return [*blocks, Text(f"Nothing to rank: {study.why_not(task, study.schemes[0], home)}.")]
    several = len(study.parts(task)) > 1
    if study.ranking(task, home):
        picture = ranking_chart(study, task, home)
        blocks += [
            Heading(3, f"Ranking at {home:,} tokens"),
            *([Text(f"{mean_of(tuple(study.averaged(task, home)), study, task)}.")] if several else []),
            _ranking_table(study, task, home),
            Picture(f"{task.name}-ranking", picture, f"{task.name}: {metric_name(task)} by scheme"),
        ]
    if len(lengths) > 1:
        blocks += [
            Heading(3, f"{metric_name(task).capitalize()} against length"),
            *([Text(f"{mean_of(study.curve_parts(task), study, task)}.")] if several else []),
            _length_table(study, task),
            Picture(
                f"{task.name}-lengths", length_chart(study, task), f"{task.name}: {metric_name(task)} against length"
            ),
        ]
    blocks += [
        Heading(3, "Learning curves"),
        Picture(f"{task.name}-curves", curve_chart(study, task), f"{task.name}: training loss against steps"),
    ]
    return blocks


def _ranking_table(study: Study, task: Task, length: int) -> Table:
    differences = study.differences(task, length)
    rows = []
    for place, (scheme, value) in enumerate(study.ranking(task, length), start=1):
        found = differences.get(scheme)
        against = ("", "", "baseline") if scheme == study.plan.baseline else ("", "", "not comparable")
        if found is not None:
            against = (interval_text(found.interval, signed=True), _p(found), found.verdict(lower_is_better(task)))
        rows.append((f"{place}. `{scheme}`", interval_text(value), *against))
    head = ("scheme", metric_name(task), f"minus {study.plan.baseline}", "p (Holm)", "verdict")
    return Table(head, tuple(rows))


def _length_table(study: Study, task: Task) -> Table:
    lengths = study.lengths(task)
    rows = []
    for scheme in study.schemes:
        cells = []
        for length in lengths:
            value = study.score(task, scheme, length, study.curve_parts(task))
            cells.append(study.why_not(task, scheme, length) if value is None else interval_text(value))
        rows.append((f"`{scheme}`", *cells))
    return Table(("scheme", *(f"{length:,}" for length in lengths)), tuple(rows))


def interval_text(value: Interval, signed: bool = False) -> str:
    """The mean and the interval: `0.912 [0.897, 0.925]`."""
    sign = "+" if signed else ""
    mean = f"{value.mean:{sign}.3f}"
    if value.low is None or value.high is None:
        return mean
    return f"{mean} [{value.low:{sign}.3f}, {value.high:{sign}.3f}]"


def _p(found: Difference) -> str:
    if found.corrected is None:
        return ""
    return "< 0.001" if found.corrected < 0.001 else f"{found.corrected:.3f}"


def _heat(study: Study) -> list[Block]:
    differences = study.differences_by_part(study.home_length)
    columns: list[tuple[str, Task, list[Interval | None]]] = []
    cells: list[list[str]] = [[f"`{scheme}`"] for scheme in study.schemes]
    marked: set[tuple[int, int]] = set()
    for task in study.tasks:
        home = study.home_length(task)
        for part in study.parts(task, home):
            values = [study.score(task, scheme, home, part) for scheme in study.schemes]
            if not any(values):
                continue
            for line, (scheme, value) in enumerate(zip(study.schemes, values, strict=True)):
                found = differences.get((task.name, part, scheme))
                differs = found is not None and found.corrected is not None and found.corrected < ALPHA
                if differs:
                    marked.add((line, len(columns)))
                text = "-" if value is None else f"{value.mean:.3f}"
                cells[line].append(f"**{text}**" if differs else text)
            columns.append((part if part.startswith(task.name) else f"{task.name}: {part}", task, values))
    if not columns:
        return []
    return [
        Heading(2, "Tasks and schemes"),
        Text(
            f"At each task's train length, or the next one tested. Bold, and framed in the picture: differs from "
            f"`{study.plan.baseline}` (Holm over the whole table)."
        ),
        Table(("", *(name for name, _, _ in columns)), tuple(tuple(row) for row in cells)),
        Picture("heat", heat_chart(study, columns, marked), "Scores of every scheme in every task"),
    ]


def _cost(study: Study) -> list[Block]:
    blocks: list[Block] = [Heading(2, "Cost")]
    for task in study.tasks:
        base = study.median_of(task, study.plan.baseline, study.speed)
        rows = []
        for scheme in study.schemes:
            speed = study.median_of(task, scheme, study.speed)
            memory = study.median_of(task, scheme, "peak_memory_mib")
            runs = study.runs(task, scheme)
            if not runs:
                continue
            rows.append(
                (
                    f"`{scheme}`",
                    f"{runs[0]['parameters']:,}",
                    f"{runs[0]['positional_parameters']:,}",
                    "" if speed is None else f"{speed:,.0f}",
                    "" if speed is None or not base else f"{speed / base:.2f}",
                    "" if memory is None else f"{memory:,.0f}",
                    f"{study.median_of(task, scheme, 'seconds') or 0:,.0f}",
                )
            )
        unit = "tokens/CPU s" if study.speed == "tokens_per_cpu_second" else "tokens/s"
        head = ("scheme", "parameters", "positional", unit, f"of {study.plan.baseline}'s", "MiB", "seconds")
        blocks += [Heading(3, f"Training on {task.name}"), Table(head, tuple(rows))]
        if study.ranking(task, study.home_length(task)):
            picture = cost_chart(study, task, study.home_length(task))
            words = f"{task.name}: {metric_name(task)} against speed of training"
            blocks.append(Picture(f"{task.name}-cost", picture, words))
    return [
        *blocks,
        Text(
            "Medians over seeds; seconds include the tests. Tokens per second are those of training, on the machine "
            "named below (on a CPU, per second of its work, set-up included: what else the machine does counts less); "
            "they are unsteady where runs are short. MiB: the most memory in use above what was in use before the run."
        ),
    ]


def _learned(study: Study) -> list[Block]:
    pictures = study.pictures()
    if not pictures:
        return []
    blocks: list[Block] = [
        Heading(2, "What the schemes learned"),
        Text("The trained scheme of one seed each, as `hf-posenc plot` draws it."),
    ]
    for scheme, path in pictures.items():
        blocks += [
            Heading(3, f"`{scheme}`"),
            Picture(f"learned-{scheme}", path.read_bytes(), f"{scheme}, trained", _is_wide(path)),
        ]
    return blocks


def _is_wide(path: Path) -> bool:
    return int.from_bytes(path.read_bytes()[16:20]) > 800  # pixels, from the header


def _made_of(study: Study) -> list[Block]:
    def every(name: str, key: str) -> str:
        values = {str(run[name].get(key)) for run in study.done}
        return ", ".join(sorted(values))

    versions = ", ".join(f"{name} {every('versions', name)}" for name in study.done[0]["versions"])
    threads = every("machine", "threads")
    return [
        Heading(2, "How it was made"),
        Points(
            (
                f"Seeds {', '.join(map(str, study.plan.seeds))}; the plan is `plan.json`, each run a `run.json`.",
                f"On {every('machine', 'device')}, {threads} thread{'' if threads == '1' else 's'}.",
                f"Versions: {versions}.",
            )
        ),
    ]


# How it is written


def to_markdown(blocks: Sequence[Block]) -> str:
    """Markdown; pictures are files in `report_pictures`."""
    parts = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"{'#' * level} {text}")
            case Text(text):
                parts.append(text)
            case Points(items):
                parts.append("\n".join(f"- {item}" for item in items))
            case Table(head, rows):
                parts.append(markdown_table(head, rows))
            case Picture(name=name, text=text):
                parts.append(f"![{text}]({PICTURES_NAME}/{name}.png)")
    return "\n\n".join(parts) + "\n"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    rule = ["---", *("---:" if _is_number(index, rows) else "---" for index in range(1, len(head)))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _is_number(column: int, rows: Sequence[Sequence[str]]) -> bool:
    cells = [row[column].strip("*") for row in rows if row[column]]
    return any(re.match(r"[<+-]? ?[\d.]+", cell) for cell in cells)


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; padding: 1rem;
  max-width: 56rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-top: 1px solid #ddd;
  padding-top: 1rem; } h3 { font-size: 1.05rem; }
.table, .wide { overflow-x: auto; } .wide img { max-width: 100%; min-width: 40rem; }
table { border-collapse: collapse; font-size: .875rem; white-space: nowrap; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e4e4e4; text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: #fff; } .n { text-align: right;
  font-variant-numeric: tabular-nums; }
img { max-width: min(100%, 36rem); height: auto; } code { background: #f2f2f2; padding: 0 .2em; border-radius: 3px; }
li, p { overflow-wrap: break-word; }
"""


def to_html(blocks: Sequence[Block]) -> str:
    """One page that needs no other file; tables scroll where the screen is narrow."""
    parts = []
    for block in blocks:
        match block:
            case Heading(level, text):
                parts.append(f"<h{level}>{_inline(text)}</h{level}>")
            case Text(text):
                parts.append(f"<p>{_inline(text)}</p>")
            case Points(items):
                parts.append("<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>")
            case Table(head, rows):
                numbers = [index > 0 and _is_number(index, rows) for index in range(len(head))]
                lines = [_html_row("th", head, numbers), *(_html_row("td", row, numbers) for row in rows)]
                parts.append(f'<div class="table"><table>{"".join(lines)}</table></div>')
            case Picture(png=png, text=text, wide=wide):
                data = base64.b64encode(png).decode()
                image = f'<img alt="{html.escape(text)}" src="data:image/png;base64,{data}">'
                parts.append(f'<div class="wide">{image}</div>' if wide else f"<p>{image}</p>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _html_row(kind: str, cells: Sequence[str], numbers: Sequence[bool]) -> str:
    made = (
        f"<{kind}{' class=n' if number else ''}>{_inline(cell)}</{kind}>"
        for cell, number in zip(cells, numbers, strict=True)
    )
    return f"<tr>{''.join(made)}</tr>"


def _inline(text: str) -> str:
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
