"""What the committed results say of one scheme: tables, sentences, metadata and the curve of a card.

The results are `model_cards/results/`: `quickstart.json`, `compare-*/` (one folder for each plan that was run) and
`benchmark*.json`. A card takes up what is there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from hf_posenc.comparison.charts import metric_name
from hf_posenc.comparison.evidence import PAGE_NAME, command, studies
from hf_posenc.comparison.page import markdown_table
from hf_posenc.comparison.plan import Task, known_plans
from hf_posenc.comparison.report import interval_text, of_rivals, quoted, rivals
from hf_posenc.comparison.statistics import NO_EVIDENCE, Difference, Interval, Sample, holm, interval, paired
from hf_posenc.comparison.study import Parts, Study, lower_is_better
from hf_posenc.model.configuration_posenc import PosEncConfig

QUICK_START = "quick start"
BASELINE = "none"
_HUB_NAMES = {
    "blimp_order": "nyu-mll/blimp",
    "cola": "nyu-mll/glue",
    "hans": "jhu-cogsci/hans",
    "imdb": "stanfordnlp/imdb",
    "mr": "cornell-movie-review-data/rotten_tomatoes",
    "sst2": "stanfordnlp/sst2",
    "trec": "CogComp/trec",
}
"""Where the Hub has the data that a set was made from."""


@dataclass(frozen=True)
class Finding:
    """One score of a scheme, beside that of the scheme it is compared with."""

    source: str
    """The plan, or `quick start`."""
    task: str
    parts: tuple[str, ...]
    """Those of the task over which it is the mean."""
    data: str
    metric: str
    lower_is_better: bool
    length: int
    curve: bool
    """Whether it is a point of a curve over lengths; else it is at the train length."""
    control: bool
    """Whether counting words solves it."""
    baseline: str
    score: Interval | None
    against: Difference | None
    """The scheme minus the baseline, corrected; None for the baseline itself."""
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """Against the baseline, in words; of a baseline nothing."""
        return "" if self.against is None else self.against.verdict(self.lower_is_better)

    @property
    def test(self) -> str:
        """The task, or a part of it."""
        if len(self.parts) != 1:
            return f"{self.task}, mean of {len(self.parts)}"
        return self.parts[0] if self.parts[0].startswith(self.task) else f"{self.task}: {self.parts[0]}"

    @property
    def where(self) -> str:
        """The plan in words."""
        return self.source if self.source == QUICK_START else f"plan `{self.source}`"


QUICK_START_LENGTH = 64
"""No sentence of the quick start has more tokens."""


class QuickStart:
    """`quickstart.json`: the test accuracy of each scheme and seed."""

    def __init__(self, path: Path) -> None:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self.seeds: list[int] = found.pop("seeds")
        self.options: dict[str, Any] = found.pop("options")
        self.baselines: dict[str, float] = found.pop("baselines", {})
        self.samples = {
            name: Sample.of_values(dict(zip(self.seeds, one["accuracies"], strict=True)), (0.0, 1.0))
            for name, one in found.items()
        }

    @property
    def command(self) -> str:
        """What measures it again."""
        seeds = " ".join(map(str, self.seeds))
        return f"python -m hf_posenc.training.quick_start --output_dir runs/seeds --seeds {seeds}"

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """Each scheme minus `none`, seed by seed."""
        others = {name: sample for name, sample in self.samples.items() if name != BASELINE}
        return holm(paired({name: (sample, self.samples[BASELINE]) for name, sample in others.items()}))

    def finding(self, scheme: str) -> Finding | None:
        """What it says of a scheme; None where it has none."""
        if scheme not in self.samples:
            return None
        return Finding(
            source=QUICK_START,
            task=self.options["dataset_name"],
            parts=(self.options["dataset_name"],),
            data=self.options["dataset_name"],
            metric="accuracy",
            lower_is_better=False,
            length=QUICK_START_LENGTH,
            curve=False,
            control=False,
            baseline=BASELINE,
            score=interval(self.samples[scheme]),
            against=self.differences.get(scheme),
        )


class Results:
    """All that is committed, read once."""

    def __init__(self, folder: Path) -> None:
        place = folder / "results"
        self.studies: dict[str, Study] = studies(folder)
        self.quick_start = QuickStart(place / "quickstart.json") if (place / "quickstart.json").is_file() else None
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
        found: dict[str, list[Finding]] = {}
        for name, study in self.studies.items():
            by_part = study.differences_by_part(study.home_length)
            for task in study.tasks:
                home, lengths = study.home_length(task), study.lengths(task)
                parts = study.parts(task, home)
                points: list[tuple[int, Parts, dict[str, Difference], bool]] = []
                points.append((home, None, study.differences(task, home), False))
                for part in parts if len(parts) > 1 else []:
                    tested = {key[2]: one for key, one in by_part.items() if key[:2] == (task.name, part)}
                    points.append((home, part, tested, False))
                for length in lengths if len(lengths) > 1 else []:
                    curve = study.curve_parts(task)
                    points.append((length, curve, study.differences(task, length, curve), True))
                for length, of, against, is_curve in points:
                    for scheme in study.schemes:
                        one = _finding(name, study, task, length, scheme, of, against.get(scheme), is_curve)
                        found.setdefault(scheme, []).append(one)
        return found

    def findings(self, scheme: str) -> list[Finding]:
        """What the results say of a scheme."""
        first = self.quick_start.finding(scheme) if self.quick_start is not None else None
        return [*([first] if first else []), *self._findings.get(scheme, [])]

    @cached_property
    def panels(self) -> list[dict[str, Any]]:
        """The score against the length of the test: plain numbers, for each task that has several lengths."""
        found = []
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
                found.append(
                    {
                        "title": f"{task.name} (plan {name})",
                        "metric": metric_name(task),
                        "log": lower_is_better(task),
                        "train": study.plan.train_length_of(task),
                        "lengths": lengths,
                        "baseline": study.plan.baseline,
                        "lines": {scheme: line for scheme, line in lines.items() if line},
                    }
                )
        return found

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
    is_curve: bool,
) -> Finding:
    score = study.score(task, scheme, length, part)
    return Finding(
        source=name,
        task=task.name,
        parts=(part,) if isinstance(part, str) else part or tuple(study.parts(task, length)),
        data=task.data or ("order_probes" if task.kind == "probes" else task.kind),
        metric=task.metric,
        lower_is_better=lower_is_better(task),
        length=length,
        curve=is_curve,
        control=task.kind == "halves",
        baseline=study.plan.baseline,
        score=score,
        against=against,
        why_not="" if score is not None else study.why_not(task, scheme, length),
    )


# The parts of a card


def measured_section(results: Results, scheme: str) -> str:
    """What was measured of a scheme at the train length, the conclusions first."""
    found = results.findings(scheme)
    if not found:
        return (
            "## Measured\n\nNo measurement of it has been committed yet. "
            f"`{command('probes')}` compares all schemes on questions about order, "
            f"`hf-posenc compare --data FOLDER --schemes none,{scheme} -o results` on your own data."
        )
    home = [one for one in found if not one.curve]
    said = _sentences(home, scheme)
    parts = [
        "## Measured",
        "\n".join(f"- {line}" for line in said),
        _score_table(home, scheme),
        "Means with 95 % intervals, over seeds and test examples (quick start: over seeds); a verdict is a paired test "
        "after Holm's correction, and no evidence of a difference isn't evidence that there is none. "
        f"{_commands(results, found)} [{PAGE_NAME}]({PAGE_NAME}) has all schemes side by side.",
    ]
    return "\n\n".join(part for part in parts if part)


def _score_table(found: Sequence[Finding], scheme: str) -> str:
    rows = []
    for one in found:
        metric = "" if one.metric == "accuracy" else f", {one.metric.replace('_', ' ')}"
        control = " (control: counting words solves it)" if one.control else ""
        score = one.why_not if one.score is None else interval_text(one.score)
        minus = "" if one.against is None else interval_text(one.against.interval, signed=True)
        verdict = f"{one.verdict} {'from' if one.verdict == NO_EVIDENCE else 'than'} `{one.baseline}`"
        said = verdict if one.verdict in ("better", "worse", NO_EVIDENCE) else one.verdict
        rows.append((f"{one.test}{metric}{control}, {one.where}", f"{one.length:,}", score, minus, said))
    return markdown_table(("test", "tokens", f"`{scheme}`", "minus the baseline", "verdict"), rows)


def _sentences(found: Sequence[Finding], scheme: str) -> list[str]:
    """On which tests it is better, worse, or neither can be said; the parts of a task rather than their mean."""
    told = [one for one in found if not one.control and len(one.parts) == 1]
    said = []
    for baseline in dict.fromkeys(one.baseline for one in told):
        tests = [one for one in told if one.baseline == baseline]
        if baseline == scheme:
            half = [one for one in tests if one.score is not None and one.score.low == one.score.high == 0.5]
            share = "all" if len(half) == len(tests) else len(half)
            rest = f"; in {share} of them it is right in exactly one half, in every run" if half else ""
            said.append(f"It is what the others are compared with in {len(tests)} tests{rest}.")
            continue
        words = {
            "better": f"**Better than `{baseline}`** on",
            "worse": f"**Worse than `{baseline}`** on",
            NO_EVIDENCE: f"**{NO_EVIDENCE.capitalize()}** from `{baseline}` on",
        }
        for verdict, start in words.items():
            names = _grouped(one for one in tests if one.verdict == verdict)
            if names:
                said.append(f"{start} {'; '.join(names)}.")
    return said


def _grouped(found: Iterable[Finding]) -> list[str]:
    """The tests by plan and task: `probes: order, swap (plan probes)`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in found:
        task, _, part = one.test.partition(": ")
        groups.setdefault((task, one.where), []).append(part)
    return [
        f"{task}: {', '.join(parts)} ({where})" if parts[0] else f"{task} ({where})"
        for (task, where), parts in groups.items()
    ]


def _commands(results: Results, found: Iterable[Finding]) -> str:
    said = []
    for source in dict.fromkeys(one.source for one in found):
        if source == QUICK_START and results.quick_start is not None:
            said.append(f"`{results.quick_start.command}`")
        elif source in known_plans():
            said.append(f"`{command(source)}`")
    return f"Measured by {', '.join(said)}."


def length_section(results: Results, scheme: str, picture: str) -> str:
    """The score against the length of the test; empty where all tests are of one length."""
    rows = [one for one in results.findings(scheme) if one.curve and not one.control]
    if not rows:
        return ""
    parts = ["## Longer inputs than in training", _score_table(rows, scheme)]
    if results.panels_of(scheme):
        parts.append(
            f"![Score of {scheme} against the length of the test]({picture})\n\n"
            f"In colour `{scheme}` with its 95 % interval, in black the baseline, in grey all others; the vertical "
            "line is the train length."
        )
    return "\n\n".join(parts)


def cost_section(results: Results, scheme: str) -> str:
    """What training costs, from the benchmarks: times that of `none` on the same batches."""
    rows: dict[str, tuple[str, ...]] = {}
    for name, measured in results.speeds.items():
        for row in measured:
            if (row["contender"], row["mode"]) != (scheme, "training"):
                continue
            memory = "" if row.get("peak_mb") is None else f"{row['peak_mb']:,.0f}"
            what = f"{row['size']}, {row['work']}, {row['dtype']}"
            rows.setdefault(what, (what, f"{row['cost']:.2f}", f"{row['tokens_per_second']:,}", memory, f"`{name}`"))
    contenders = BASELINE if scheme == BASELINE else f"{BASELINE},{scheme}"
    again = f"`hf-posenc benchmark --contenders {contenders} --works 16x64,2x512 --modes training`"
    if not rows:
        return f"## Cost\n\nIts speed hasn't been measured yet; {again} does it on your machine."
    return "\n\n".join(
        [
            "## Cost",
            f"Time of a forward and backward as a multiple of `{BASELINE}`'s on the same batches (rows x tokens, or "
            "`sst2`: 32 sentences of its lengths), tokens per second and peak memory:",
            markdown_table(
                ("encoder, batch, dtype", f"time x `{BASELINE}`", "tokens/s", "MB", "file in `results/`"),
                [*rows.values()],
            ),
            f"[speed.md](speed.md) has the commands; {again} measures your machine.",
        ]
    )


def evidence_section(results: Results) -> str:
    """Every test with who is better than its baseline, who is worse, and who can't be told from whom."""
    rows: list[tuple[str, ...]] = []
    best: list[str] = []
    if results.quick_start is not None:
        one = results.quick_start.finding(BASELINE)
        assert one is not None
        verdicts = _by_verdict(results.quick_start.differences, False)
        rows.append((f"{one.task}, {one.where}", f"{one.length:,}", f"`{BASELINE}`", *verdicts, ""))
    for name, study in results.studies.items():
        for task in study.tasks:
            rows += _evidence_rows(name, study, task)
            if task.kind != "halves" and len(study.plan.seeds) > 1:
                best += _best_sentences(name, study, task)
    if not rows:
        return "Nothing has been measured yet."
    head = ("test", "tokens", "against", "better", "worse", NO_EVIDENCE, "can't be tested")
    parts = [markdown_table(head, rows)]
    if best:
        parts.append("The schemes among each other, corrected for all pairs:\n\n" + "\n".join(best))
    return "\n\n".join(parts)


def _evidence_rows(name: str, study: Study, task: Task) -> Iterator[tuple[str, ...]]:
    """The task's parts at the train length, then their mean there and at the longest inputs."""
    lower, home = lower_is_better(task), study.home_length(task)
    parts = study.parts(task, home)
    by_part = study.differences_by_part(study.home_length)

    def row(length: int, part: Parts, differences: Mapping[str, Difference]) -> tuple[str, ...]:
        one = _finding(name, study, task, length, study.plan.baseline, part, None, False)
        control = " (control)" if one.control else ""
        unable = [scheme for scheme in study.schemes if study.score(task, scheme, length, part) is None]
        cells = (f"{one.test}{control}, {one.where}", f"{length:,}", f"`{one.baseline}`")
        return (*cells, *_by_verdict(differences, lower), quoted(unable))

    if len(parts) > 1:
        for part in parts:
            found = {scheme: by_part[key] for scheme in study.schemes if (key := (task.name, part, scheme)) in by_part}
            yield row(home, part, found)
    for length in dict.fromkeys((home, study.lengths(task)[-1])):
        yield row(length, None, study.differences(task, length))


def _best_sentences(name: str, study: Study, task: Task) -> Iterator[str]:
    for length in dict.fromkeys((study.home_length(task), study.lengths(task)[-1])):
        if len(study.ranking(task, length)) < 3:
            continue
        winner, beaten, equal = rivals(study, task, length)
        yield f"- {task.name}, plan `{name}`, {length:,} tokens: best mean `{winner}`, {of_rivals(beaten, equal)}."


def _by_verdict(found: Mapping[str, Difference], lower: bool) -> tuple[str, str, str]:
    groups: dict[str, list[str]] = {"better": [], "worse": [], NO_EVIDENCE: []}
    for scheme, value in found.items():
        groups.setdefault(value.verdict(lower), []).append(scheme)
    return (quoted(groups["better"]), quoted(groups["worse"]), quoted(groups[NO_EVIDENCE]))


def limits_of_the_evidence(results: Results, scheme: str) -> str | None:
    """What the measured models were, which limits what the numbers say of others; None: nothing was measured."""
    found = [one for one in results.findings(scheme) if one.score is not None]
    sizes, trained = set(), set()
    for study in results.studies.values():
        for run in study.done:
            if run["scheme"] == scheme:
                sizes.add((run["config"]["num_hidden_layers"], run["config"]["hidden_size"]))
                trained |= {study.plan.train_length_of(task) for task in study.tasks if task.name == run["task"]}
    if results.quick_start is not None and any(one.source == QUICK_START for one in found):
        config = PosEncConfig.from_preset("tiny")
        sizes.add((config.num_hidden_layers, config.hidden_size))
        trained.add(QUICK_START_LENGTH)
    if not found:
        return None
    models = " and ".join(f"{layers} layers of width {width}" for layers, width in sorted(sizes))
    return (
        f"The numbers above are of small encoders ({models}) on generated and English text, trained at up to "
        f"{max(trained):,} tokens and tested at up to {max(one.length for one in found):,}. They don't say how it does "
        "in larger models, in longer training or in other languages."
    )


# Metadata


def eval_results(results: Results, scheme: str) -> list[EvalResult]:
    """For `model-index`: every task at every length, and the parts at the train length; the control isn't there."""
    made = []
    found = results.findings(scheme)
    home = {(one.source, one.task, one.parts, one.length) for one in found if not one.curve}
    for one in found:
        is_again = one.curve and (one.source, one.task, one.parts, one.length) in home
        if one.control or one.score is None or is_again:
            continue
        score, task = one.score, "fill-mask" if one.metric == "perplexity" else "text-classification"
        spread = "" if score.low is None else f", 95 % interval {score.low:.4f} to {score.high:.4f}"
        seeds = f"{one.source}, mean of {score.seeds} seeds" if score.seeds > 1 else f"{one.source}, one seed"
        made.append(
            EvalResult(
                task_type=task,
                task_name=task.replace("-", " ").capitalize(),
                dataset_type=hub_name(one.data) or one.data,
                dataset_name=one.test,
                dataset_config=None if hub_name(one.data) else one.test,
                dataset_split="test",
                metric_type=one.metric,
                metric_name=f"{one.metric.replace('_', ' ').capitalize()} at {one.length} tokens ({seeds}{spread})",
                metric_value=round(score.mean, 4),
            )
        )
    return made


def hub_name(data: str) -> str | None:
    """The Hub's name of a data set; None where it isn't there."""
    return data if "/" in data and not Path(data).exists() else _HUB_NAMES.get(data)
