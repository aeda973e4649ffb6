"""The page of evidence, `model_cards/evidence.md`: what the committed comparisons allow one to say.

    python -m hf_posenc.comparison.evidence [FOLDER]

Everything on it comes from the results in `results/compare-*`.
"""

import argparse
import shlex
from pathlib import Path

from hf_posenc.training.checkpoints import write_text

from .page import markdown_table
from .plan import about, known_plans
from .report import conclusions, length_rows, mean_of, named
from .statistics import ALPHA
from .study import Study, lower_is_better

COMMAND = "python -m hf_posenc.comparison.evidence"
FOLDER = Path(__file__).parent.parent.parent / "model_cards"
PAGE_NAME = "evidence.md"


def studies(folder: str | Path = FOLDER) -> dict[str, Study]:
    """The committed comparisons, by the name of their plan."""
    found = sorted((Path(folder) / "results").glob("compare-*"))
    return {path.name.removeprefix("compare-"): Study.read(path) for path in found}


def command(name: str) -> str:
    """What makes a comparison again."""
    return f"hf-posenc compare --plan {shlex.quote(name)} -o results/{name}"


def render_evidence(folder: str | Path = FOLDER) -> str:
    """The page.

    Raises:
        ValueError: there are no comparisons in the folder.
    """
    found = studies(folder)
    if not found:
        raise ValueError(f"{str(folder)!r} has no results/compare-* folder. Run a comparison into it first.")
    lines = [
        "# Which scheme when: the evidence",
        "",
        f"Made by `{COMMAND}` from the results in `results/`; [Which scheme when](README.md)",
        "sums it up. Only what the tests carry is said: a scheme is called better or worse than the baseline where a",
        f"paired test over seeds and examples gives p < {ALPHA} after correction for the number of comparisons; the",
        "best mean is compared with the others after correction for all pairs. No evidence of a difference isn't",
        "evidence that there is none. Encoders, budgets and data are small, so a scheme that didn't learn a probe here",
        "may learn it with more; a ranking here isn't one elsewhere. In the tables bold differs from the baseline",
        "after correction for all tests of the plan. `hf-posenc report` gives pictures, costs and all tables.",
    ]
    for name, study in found.items():
        lines += ["", f"## `{name}`", ""]
        if name in known_plans():
            lines += [f"`{command(name)}`: {about(name)}", ""]
        lines += [f"- {sentence}" for sentence in conclusions(study)]
        for task in study.tasks:
            home = study.home_length(task)
            lines += ["", f"### {task.name}", "", *part_table(study, task.name, home).splitlines()]
            lengths = study.lengths(task)
            if len(lengths) > 1:
                lines += [
                    "",
                    f"{mean_of(study.curve_parts(task), study, task)} against length, with 95 % intervals:",
                    "",
                ]
                lines += length_table(study, task.name).splitlines()
        machine = study.done[0]["machine"]["device"]
        lines += ["", f"{len(study.done)} runs on {machine}, seeds {', '.join(map(str, study.plan.seeds))}."]
    return "\n".join(lines) + "\n"


def part_table(study: Study, task_name: str, length: int) -> str:
    """Each scheme's mean in each part of a task; bold where it differs from the baseline."""
    task = next(task for task in study.tasks if task.name == task_name)
    found = study.differences_by_part(study.home_length)
    parts = study.parts(task, length)
    rows = []
    for scheme in (*study.schemes, *study.references.get(task_name, {})):
        cells = []
        for part in parts:
            value = study.score(task, scheme, length, part)
            tested = found.get((task.name, part, scheme))
            differs = tested is not None and tested.verdict(lower_is_better(task)) in ("better", "worse")
            text = study.why_not(task, scheme, length) if value is None else f"{value.mean:.3f}"
            cells.append(f"**{text}**" if differs else text)
        rows.append((named(study, scheme), *cells))
    return markdown_table((f"{length} tokens", *parts), rows)


def length_table(study: Study, task_name: str) -> str:
    """Each scheme's mean over the parts of a task at each length, with its interval."""
    task = next(task for task in study.tasks if task.name == task_name)
    return markdown_table(("tokens", *(str(length) for length in study.lengths(task))), length_rows(study, task))


def main() -> None:
    """Entry point of `python -m hf_posenc.comparison.evidence`."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=FOLDER, type=Path, help="default: model_cards of this checkout")
    folder = parser.parse_args().folder
    try:
        write_text(folder / PAGE_NAME, render_evidence(folder))
    except ValueError as error:
        parser.error(str(error))
    print(folder / PAGE_NAME)


if __name__ == "__main__":
    main()
