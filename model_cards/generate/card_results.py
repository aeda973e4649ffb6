"""What the committed results say of one scheme: tables, sentences, metadata and the curve of a card.

The results are `model_cards/results/`: `compare-*/` (one folder for each plan that was run) and `benchmark*.json`. A
card takes up what is there.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from hf_posenc.comparison.charts import metric_name
from hf_posenc.comparison.findings import gap_number, in_brackets, interval_text, learned_text, seeds_number
from hf_posenc.comparison.plan import Task
from hf_posenc.comparison.references import PLACES, TO_BEAT
from hf_posenc.comparison.statistics import LEARNED, UNDECIDED, Difference, Interval, Learned
from hf_posenc.comparison.study import Parts, Study
from hf_posenc.markdown import render
from model_cards.generate.evidence import PAGE_NAME, command, linear_cells, own_parts, studies, test_name, tested_on

BASELINE = "none"
_HUB_NAMES = {"blimp_order": "nyu-mll/blimp", "imdb": "stanfordnlp/imdb"}
"""Where the Hub has the data that a set was made from."""


@dataclass(frozen=True)
class Finding:
    """One score of a scheme, beside that of the scheme it is compared with."""

    source: str
    """The plan."""
    task: str
    parts: tuple[str, ...]
    """Those of the task over which it is the mean."""
    data: str
    metric: str
    length: int
    curve: bool
    """Whether it is a point of a curve over lengths; else it is at the train length."""
    control: bool
    """Whether counting words solves it."""
    baseline: str
    score: Interval | None
    against: Difference | None
    """The scheme minus the baseline, corrected; None for the baseline itself."""
    linear: Mapping[str, float] = field(default_factory=dict)
    """What the linear models reach there, by name."""
    above: Difference | None = None
    """The scheme minus the best of them, corrected for the number of schemes."""
    learned: Learned | None = None
    """How many runs of how many learned it; None: all runs of all schemes did, or that can't be said."""
    healed: bool = False
    """Whether the models are healed conversions of a checkpoint."""
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """Against the baseline, in words; of a baseline nothing."""
        return "" if self.against is None else self.against.verdict()

    @property
    def is_above(self) -> bool:
        """Whether a test says that it is better than the best linear model."""
        return self.above is not None and self.above.verdict() == "better"

    @property
    def test(self) -> str:
        """The task, or a part of it."""
        return test_name(self.task, self.parts)

    @property
    def where(self) -> str:
        """The plan in words."""
        plan = f"plan `{self.source}`"
        return f"{plan}, healed conversions" if self.healed else plan

    @property
    def data_name(self) -> str:
        """What the data are, in words."""
        return tested_on(self.task, self.data, self.test) or self.test


def read_results(folder: Path, name: str) -> dict[str, Any]:
    """`results/NAME.json` of a folder of model cards."""
    return json.loads((folder / "results" / f"{name}.json").read_text(encoding="utf-8"))


class Results:
    """All that is committed, read once."""

    def __init__(self, folder: Path) -> None:
        place = folder / "results"
        self.studies: dict[str, Study] = studies(folder)
        self.speeds: dict[str, list[dict[str, Any]]] = {}
        """Of each `benchmark*.json` the rows that say what a scheme costs beside `none`."""
        # The one with all schemes first: of two that measured the same its numbers are shown.
        for path in sorted(
            place.glob("benchmark*.json"), key=lambda path: (path.stem != "benchmark_schemes", path.stem)
        ):
            rows = json.loads(path.read_text(encoding="utf-8")).get("rows", [])
            self.speeds[path.stem] = [row for row in rows if row.get("cost") is not None]

    @cached_property
    def _findings(self) -> dict[str, list[Finding]]:
        # Test by test, and in each all schemes: what the bootstrap draws for a test is the same for them.
        findings: dict[str, list[Finding]] = {}
        for name, study in self.studies.items():
            by_part = study.differences_by_part(study.home_length)
            for task in study.tasks:
                home, lengths = study.home_length(task), study.lengths(task)
                points: list[tuple[int, Parts, Mapping[str, Difference], bool]] = []
                points.append((home, None, study.differences(task, home), False))
                for part in own_parts(study, task, home):
                    tested = {key[2]: difference for key, difference in by_part.items() if key[:2] == (task.name, part)}
                    points.append((home, part, tested, False))
                for length in lengths if len(lengths) > 1 else []:
                    curve = study.curve_parts(task)
                    points.append((length, curve, study.differences(task, length, curve), True))
                for length, of, against, is_curve in points:
                    above = study.above(task, length, of)
                    for scheme in study.schemes:
                        finding = _finding(
                            name, study, task, length, scheme, of, against.get(scheme), above.get(scheme), is_curve
                        )
                        findings.setdefault(scheme, []).append(finding)
        return findings

    def findings(self, scheme: str) -> list[Finding]:
        """What the results say of a scheme."""
        return self._findings.get(scheme, [])

    @cached_property
    def panels(self) -> list[dict[str, Any]]:
        """The score against the length of the test: plain numbers, for each task that has several lengths."""
        panels = []
        for name, study in self.studies.items():
            for task in study.tasks:
                lengths = study.lengths(task)
                if task.kind == "halves" or len(lengths) < 2:
                    continue
                parts = study.curve_parts(task)
                lines: dict[str, list[list[float | None]]] = {scheme: [] for scheme in study.schemes}
                for length in lengths:
                    for scheme in study.schemes:
                        value = study.score(task, scheme, length, parts)
                        if value is not None:
                            numbers = (value.mean, value.low, value.high)
                            lines[scheme].append([length, *(None if n is None else round(n, 9) for n in numbers)])
                panels.append(
                    {
                        "title": f"{task.name} (plan {name})",
                        "metric": metric_name(task),
                        "train": study.plan.train_length_of(task),
                        "lengths": lengths,
                        "baseline": study.plan.baseline,
                        "lines": {scheme: line for scheme, line in lines.items() if line},
                    }
                )
        return panels

    def panels_of(self, scheme: str) -> list[dict[str, Any]]:
        """Those in which a scheme has a line."""
        return [panel for panel in self.panels if scheme in panel["lines"]]


def _finding(
    name: str,
    study: Study,
    task: Task,
    length: int,
    scheme: str,
    part: Parts,
    against: Difference | None,
    above: Difference | None,
    is_curve: bool,
) -> Finding:
    score = study.score(task, scheme, length, part)
    parts = (part,) if isinstance(part, str) else part or tuple(study.parts(task, length))
    return Finding(
        source=name,
        task=task.name,
        parts=parts,
        data=task.data or ("order_probes" if task.kind == "probes" else task.kind),
        metric=task.metric,
        length=length,
        curve=is_curve,
        control=task.kind == "halves",
        baseline=study.plan.baseline,
        score=score,
        against=against,
        linear=study.linear(task, length, part),
        above=above,
        learned=_learned(study, task, length, scheme, parts),
        healed=study.plan.pretrained is not None,
        why_not="" if score is not None else study.why_not(task, scheme, length),
    )


def _learned(study: Study, task: Task, length: int, scheme: str, parts: Sequence[str]) -> Learned | None:
    if len(parts) != 1 or not study.is_all_or_none(task, length, parts[0]):
        return None
    return study.learned(task, scheme, length, parts[0])


# The parts of a card

COST_FILES = ("benchmark_schemes", "benchmark_2048", "benchmark_8192")
"""The benchmarks of all schemes alike; the speed page has the others."""


def results_part(results: Results, scheme: str) -> str:
    """What was measured of a scheme: at the train length, on longer inputs, and its cost."""
    tests = [finding for finding in results.findings(scheme) if not finding.control]
    home = [finding for finding in tests if not finding.curve and len(finding.parts) == 1]
    curves: dict[tuple[str, str], list[Finding]] = {}
    for finding in tests:
        if finding.curve:
            curves.setdefault((finding.source, finding.task), []).append(finding)
    ends = [end for curve in curves.values() for end in (curve[0], curve[-1])]
    linear = [name for name in TO_BEAT if name != PLACES and any(name in finding.linear for finding in (*home, *ends))]
    contenders = BASELINE if scheme == BASELINE else f"{BASELINE},{scheme}"
    return render(
        Path(__file__).with_name("results.md.jinja"),
        scheme=scheme,
        baseline=BASELINE,
        head=("test", "tokens", *linear, f"`{scheme}`", "runs that learned it", "minus the baseline", "verdict"),
        sentences=_sentences(home, scheme),
        scores=[_score_row(finding, linear) for finding in home],
        learned=LEARNED,
        probes=f"{command('probes')} --schemes {contenders}",
        page=PAGE_NAME,
        ends=[_score_row(finding, linear) for finding in ends],
        has_curve=bool(ends and results.panels_of(scheme)),
        speeds=_speed_rows(results, scheme),
        benchmark=f"python -m model_cards.benchmark --contenders {contenders} --works 16x64,2x512 --modes training",
    )


def _score_row(finding: Finding, linear: Sequence[str]) -> tuple[str, ...]:
    metric = "" if finding.metric == "accuracy" else f" ({finding.metric.replace('_', ' ')})"
    score = finding.why_not if finding.score is None else interval_text(finding.score)
    minus = "" if finding.against is None else interval_text(finding.against.interval, signed=True)
    verdict = finding.verdict
    if verdict in ("better", "worse", UNDECIDED):
        joined = "against" if verdict == UNDECIDED else "than"
        seeds = seeds_number(finding.against)
        takes = (gap_number(finding.against), f"{seeds} seeds" if seeds else "")
        verdict = f"{verdict} {joined} `{finding.baseline}`{in_brackets('; '.join(filter(None, takes)))}"
    test = f"{finding.test}{metric}, {finding.where}"
    scores = (*linear_cells(finding.linear, linear), score, learned_text(finding.learned))
    return (test, f"{finding.length:,}", *scores, minus, verdict)


def _speed_rows(results: Results, scheme: str) -> list[tuple[str, ...]]:
    """What training costs, from the benchmarks: times that of `none` on the same batches."""
    rows: list[tuple[str, ...]] = []
    for row in (row for name in COST_FILES for row in results.speeds.get(name, [])):
        if (row["contender"], row["mode"]) == (scheme, "training"):
            memory = "" if row.get("peak_mb") is None else f"{row['peak_mb']:,.0f}"
            rows.append((f"{row['size']}, {row['work']}, {row['dtype']}", f"{row['cost']:.2f}", memory))
    return rows


def _sentences(home: Sequence[Finding], scheme: str) -> list[str]:
    """What stands before the table: where a linear model isn't beaten; of a baseline, that the others meet it there."""
    sentences = []
    if names := _grouped(finding for finding in home if finding.above is not None and not finding.is_above):
        sentences.append(f"**Not shown to be above the baselines** on {'; '.join(names)}.")
    tests = [finding for finding in home if finding.baseline == scheme]
    if tests:
        half = [test for test in tests if test.score is not None and test.score.low == test.score.high == 0.5]
        share = "all" if len(half) == len(tests) else len(half)
        rest = f"; in {share} of them it is right in exactly one half, in every run" if half else ""
        sentences.append(f"It is what the others are compared with in {len(tests)} tests{rest}.")
    return sentences


def _grouped(tests: Iterable[Finding]) -> list[str]:
    """The tests by plan: `probes: order_near, probes: place (plan probes)`."""
    groups: dict[str, list[str]] = {}
    for finding in tests:
        groups.setdefault(finding.where, []).append(finding.test)
    return [f"{', '.join(names)} ({where})" for where, names in groups.items()]


def limits_of_the_evidence(results: Results, scheme: str) -> str | None:
    """What the measured models were, which limits what the numbers say of others; None: nothing was measured."""
    scored = [finding for finding in results.findings(scheme) if finding.score is not None]
    sizes, trained = set(), set()
    for study in results.studies.values():
        for run in study.done:
            if run["scheme"] == scheme:
                sizes.add((run["config"]["num_hidden_layers"], run["config"]["hidden_size"]))
                trained |= {study.plan.train_length_of(task) for task in study.tasks if task.name == run["task"]}
    if not scored:
        return None
    models = ", ".join(f"{layers} layers {width} wide" for layers, width in sorted(sizes))
    return (
        f"The numbers above are of small encoders ({models}) on generated and English text, trained at up to "
        f"{max(trained):,} tokens and tested at up to {max(finding.length for finding in scored):,}. They don't say "
        "how it does in larger models, in longer training or in other languages."
    )


# Metadata


def on_the_hub(results: Results, scheme: str) -> list[Finding]:
    """What `model-index` lists: the scores at the train length on data that the Hub has too."""
    return [
        finding
        for finding in results.findings(scheme)
        if not finding.curve and len(finding.parts) == 1 and finding.score is not None and hub_name(finding.data)
    ]


def eval_results(results: Results, scheme: str) -> list[EvalResult]:
    """For `model-index`. Without a split, which would name an official one: the name says what the data are."""
    made = []
    for finding in on_the_hub(results, scheme):
        score = finding.score
        assert score is not None
        spread = "" if score.low is None else f", 95 % interval {score.low:.4f} to {score.high:.4f}"
        seeds = f"{finding.source}, mean of {score.seeds} seeds" if score.seeds > 1 else f"{finding.source}, one seed"
        metric = finding.metric.replace("_", " ").capitalize()
        made.append(
            EvalResult(
                task_type="text-classification",
                task_name="Text classification",
                dataset_type=hub_name(finding.data) or finding.data,
                dataset_name=finding.data_name,
                dataset_config=finding.test,  # without it model-index would join the parts of a set
                metric_type=finding.metric,
                metric_name=f"{metric} at {finding.length} tokens ({seeds}{spread})",
                metric_value=round(score.mean, 4),
            )
        )
    return made


def hub_name(data: str) -> str | None:
    """The Hub's name of a data set; None where it isn't there."""
    return data if "/" in data and not Path(data).exists() else _HUB_NAMES.get(data)
