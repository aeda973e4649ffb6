"""The page of evidence, `model_cards/evidence.md`: what the committed comparisons allow one to say.

    python -m model_cards.generate.evidence [FOLDER]
    python -m model_cards.generate.evidence --baselines --pretrained MINILM

Everything on it comes from the results in `results/compare-*`. The second line first measures what every scheme has to
beat, where a comparison lacks it: seconds for a task.
"""

import argparse
import shlex
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hf_posenc.comparison.checkpoints import convert_checkpoints
from hf_posenc.comparison.findings import conclusions, gap_range, in_brackets, quoted, seeds_range
from hf_posenc.comparison.plan import Task
from hf_posenc.comparison.plan_file import about, known_plans
from hf_posenc.comparison.records import read_baselines
from hf_posenc.comparison.references import MAJORITY, REFERENCES_NAME, TO_BEAT, measure_references, to_beat
from hf_posenc.comparison.report import length_rows, mean_of, named, power_table, rates
from hf_posenc.comparison.results_folder import load_plan
from hf_posenc.comparison.statistics import ALPHA, LEARNED, UNDECIDED, Difference
from hf_posenc.comparison.study import Parts, Study
from hf_posenc.files import write_json, write_text
from hf_posenc.markdown import markdown_table, render

COMMAND = "python -m model_cards.generate.evidence"
FOLDER = Path(__file__).parent.parent
PAGE_NAME = "evidence.md"
TESTED_ON = {
    "blimp_order": "BLiMP, pairs that differ in word order alone, a test part of our own",
    "trec": "TREC, types of questions, the official test part",
    "imdb": "IMDb reviews of at most 200 words, a sample of the official test part",
    "imdb/test_long": "IMDb reviews of more than 512 words, a sample of the official test part",
    "bshift_novels": "sentences of novels, two neighbouring words swapped in half of them, a test part of our own",
    "listops": "ListOps, a test part of our own",
    "sst2": "SST-2, sentences of film reviews, the official test part",
    "semeval2010_task8": "SemEval-2010 task 8, relations with direction, the official test part",
    "cola": "CoLA, the in-domain development part",
    "subj": "Subjectivity, subjective or objective sentences, a test part of our own",
}
"""What the parts of a task are, by the part's name or that of the task's data."""


def tested_on(task: str, data: str | None, part: str) -> str | None:
    """What a part of a task is, in words."""
    return TESTED_ON.get(part) or (TESTED_ON.get(str(data)) if part == task else None)


def studies(folder: str | Path = FOLDER) -> dict[str, Study]:
    """The committed comparisons, by the name of their plan."""
    folders = sorted((Path(folder) / "results").glob("compare-*"))
    return {path.name.removeprefix("compare-"): Study.read(path) for path in folders}


def measure_baselines(folder: str | Path = FOLDER, pretrained: str | None = None) -> list[Path]:
    """Measures the baselines of the committed comparisons that lack one; returns the files written.

    Args:
        folder: of the model cards.
        pretrained: where the checkpoint lies that a plan names on the Hub; its tokenizer is read.

    Raises:
        UserError: data or checkpoint can't be read.
    """
    written = []
    for results in sorted((Path(folder) / "results").glob("compare-*")):
        plan = load_plan(results)
        for task in plan.tasks:
            path = results / REFERENCES_NAME / f"{task.name}.json"
            if _measured(path) >= {MAJORITY, *to_beat(task)}:
                continue
            with tempfile.TemporaryDirectory() as data:
                if plan.pretrained is not None:
                    plan = replace(plan, pretrained=pretrained or plan.pretrained)
                    convert_checkpoints(replace(plan, schemes=plan.schemes[:1]), Path(data))
                write_json(path, {"baselines": measure_references(plan, task, Path(data))})
            written.append(path)
    return written


def _measured(path: Path) -> set[str]:
    """The baselines that a file holds, whose choice was measured, too."""
    known = read_baselines(path) if path.is_file() else []
    return {baseline["scheme"] for baseline in known if "development" in baseline}


def command(name: str) -> str:
    """What makes a comparison again."""
    return f"hf-posenc compare --plan {shlex.quote(name)} -o results/{name}"


def render_evidence(folder: str | Path = FOLDER, by_plan: dict[str, Study] | None = None) -> str:
    """The page, of the comparisons in a folder, or of those that were read already.

    Raises:
        ValueError: there are no comparisons in the folder.
    """
    by_plan = studies(folder) if by_plan is None else by_plan
    if not by_plan:
        raise ValueError(f"{str(folder)!r} has no results/compare-* folder. Run a comparison into it first.")
    return render(
        Path(__file__).with_name("evidence.md.jinja"),
        command=COMMAND,
        alpha=ALPHA,
        learned=LEARNED,
        studies=by_plan,
        plans=known_plans(),
        command_of=command,
        about=about,
        conclusions=conclusions,
        verdict_table=verdict_table,
        part_table=part_table,
        length_table=length_table,
        power_table=power_table,
        mean_of=mean_of,
        tested_on=tested_on,
        origin=origin,
        rate_line=rate_line,
    )


_UNKNOWN = "unknown"


def _short(commit: str | None) -> str:
    """A commit as people write it: `8256914`, `8256914-dirty`."""
    name, dash, rest = (commit or _UNKNOWN).partition("-")
    return name[:7] + dash + rest


def origin(study: Study) -> str:
    """How many runs, on which processors, of which code, with which seeds."""
    devices = sorted({run["machine"]["device"] for run in study.done})
    commits = sorted({_short(run.get("commit")) for run in study.done})
    at = "" if commits == [_UNKNOWN] else f", commit {', '.join(commits)}"
    return f"{len(study.done)} runs on {' and '.join(devices)}{at}, seeds {', '.join(map(str, study.plan.seeds))}."


def verdict_table(study: Study) -> str:
    """Every test of a plan: which schemes are better than the baseline, which are worse, which can't be told from it.

    The parts of a task at the train length, then their mean there and at the longest inputs.
    """
    by_part = study.differences_by_part(study.home_length)
    rows = []
    linear = [name for name in TO_BEAT if any(name in known for known in study.references.values())]
    for task in study.tasks:
        home = study.home_length(task)
        for part in own_parts(study, task, home):
            tested = {key[2]: difference for key, difference in by_part.items() if key[:2] == (task.name, part)}
            rows.append(_verdict_row(study, task, home, part, tested, linear))
        for length in dict.fromkeys((home, study.lengths(task)[-1])):
            rows.append(_verdict_row(study, task, length, None, study.differences(task, length), linear))
    baseline = f"`{study.plan.baseline}`"
    head = ("test", "tokens", *linear, "above these", f"better than {baseline}", f"worse than {baseline}")
    return markdown_table((*head, f"not told from {baseline} (smallest gap; seeds to decide)", "no score"), rows)


def linear_cells(scores: Mapping[str, float], names: Iterable[str]) -> list[str]:
    """What each of these baselines reaches; nothing where it wasn't measured."""
    return [f"{scores[name]:.3f}" if name in scores else "" for name in names]


def own_parts(study: Study, task: Task, length: int) -> list[str]:
    """The parts of a task that say more than its mean; none where it has a single one."""
    parts = study.parts(task, length)
    return parts if len(parts) > 1 else []


def test_name(task: str, parts: Sequence[str]) -> str:
    """A task, or a part of it, in a table."""
    if len(parts) != 1:
        return f"{task}, mean of {len(parts)}"
    return parts[0] if parts[0].startswith(task) else f"{task}: {parts[0]}"


def _verdict_row(
    study: Study, task: Task, length: int, part: Parts, differences: Mapping[str, Difference], linear: Iterable[str]
) -> tuple[str, ...]:
    name = test_name(task.name, [part] if isinstance(part, str) else study.parts(task, length))
    above = study.above(task, length, part)
    groups: dict[str, list[str]] = {"better": [], "worse": [], UNDECIDED: []}
    for scheme, difference in differences.items():
        groups.setdefault(difference.verdict(), []).append(scheme)
    beaten = [scheme for scheme, difference in above.items() if difference.verdict() == "better"]
    open_ones = [differences[scheme] for scheme in groups[UNDECIDED]]
    takes = "; ".join(filter(None, (gap_range(open_ones), seeds_range(open_ones))))
    return (
        name + (" (control: counting words solves it)" if task.kind == "halves" else ""),
        f"{length:,}",
        *linear_cells(study.linear(task, length, part), linear),
        _names(beaten, above),
        _names(groups["better"], differences),
        _names(groups["worse"], differences),
        _names(groups[UNDECIDED], differences) + in_brackets(takes),
        quoted(scheme for scheme in study.schemes if study.score(task, scheme, length, part) is None),
    )


def _names(schemes: Sequence[str], tested: Collection[str]) -> str:
    """The schemes, or `all but` the others where they are most of those that were tested."""
    others = [scheme for scheme in tested if scheme not in schemes]
    if len(schemes) > 1 and len(others) < len(schemes) / 2:
        return f"all but {quoted(others)}" if others else "all"
    return quoted(schemes)


def part_table(study: Study, task_name: str, length: int) -> str:
    """What is to be beaten, then each scheme's mean in each part of a task; bold where it differs from the baseline.

    Where some runs learned the part and others didn't, `3/5` behind a mean says how many of how many.
    """
    task = next(task for task in study.tasks if task.name == task_name)
    differences = study.differences_by_part(study.home_length)
    parts = study.parts(task, length)
    rows = []
    for scheme in (*study.references.get(task_name, {}), *study.schemes):
        cells = []
        for part in parts:
            value = study.score(task, scheme, length, part)
            tested = differences.get((task.name, part, scheme))
            differs = tested is not None and tested.verdict() in ("better", "worse")
            text = study.why_not(task, scheme, length) if value is None else f"{value.mean:.3f}"
            cells.append((f"**{text}**" if differs else text) + learned_count(study, task, scheme, length, part))
        rows.append((named(study, scheme), *cells))
    return markdown_table((f"{length} tokens", *parts), rows)


def learned_count(study: Study, task: Task, scheme: str, length: int, part: str) -> str:
    """` 3/5`: three of a scheme's five runs learned a part, of which some runs learned it and others didn't."""
    shows = scheme in study.schemes and study.is_all_or_none(task, length, part)
    learned = study.learned(task, scheme, length, part) if shows else None
    return "" if learned is None else f" {learned.runs}/{learned.of}"


def rate_line(study: Study) -> str:
    """Whether each scheme has a learning rate of its own, and which ones lie at the edge of what was tried."""
    return rates(study)[0]


def length_table(study: Study, task_name: str) -> str:
    """Each scheme's mean over the parts of a task at each length, with its interval."""
    task = next(task for task in study.tasks if task.name == task_name)
    return markdown_table(("tokens", *(str(length) for length in study.lengths(task))), length_rows(study, task))


def main() -> None:
    """Entry point of `python -m model_cards.generate.evidence`."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=FOLDER, type=Path, help="default: model_cards of this checkout")
    parser.add_argument("--baselines", action="store_true", help="measure them first, where a comparison lacks them")
    parser.add_argument("--pretrained", help="with --baselines: the folder of the checkpoint that a plan names")
    arguments = parser.parse_args()
    folder = arguments.folder
    try:
        for path in measure_baselines(folder, arguments.pretrained) if arguments.baselines else ():
            print(path)
        write_text(folder / PAGE_NAME, render_evidence(folder))
    except ValueError as error:
        parser.error(str(error))
    print(folder / PAGE_NAME)


if __name__ == "__main__":
    main()
