"""How fast a classifier is served: PyTorch, ONNX Runtime and OpenVINO, each alone in a process, beside stock BERT."""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from ..benchmark import SIZES, Target, build_model, judge, machine, make_batches
from ..conversion.heal import read_training_texts
from ..conversion.measure import own_texts
from ..data.labels import TOKENS
from ..data.tokenizer import load_tokenizer, train_tokenizer
from ..errors import UserError, one_line
from ..finetuning.loading import load_any
from ..finetuning.model import input_length
from ..quiet import without_bars
from .int8 import quantize_graph
from .run import export
from .scoring import GATES, Questions, agreement, from_texts, problem_type_of, read_labelled, score
from .timing import FILE, FULL, SHORT

REFERENCE = "bert:torch:float32:as_they_come"
CONTENDERS = (
    *(REFERENCE, "bert:torch:float32", "bert:torch:bf16"),
    *("bert:openvino:float32", "bert:openvino:bf16", "bert:openvino:int8"),
    *("posenc:torch:float32", "posenc:torch:bf16", "posenc:onnx:float32", "posenc:onnx:int8"),
    *("posenc:openvino:float32", "posenc:openvino:bf16", "posenc:openvino:int8"),
)
"""MODEL:RUNTIME:PRECISION. All sort a file into batches of like lengths, as `hf-posenc predict` does, but the
reference, which is PyTorch in float32 on batches as they come. bf16 in PyTorch is weights in bfloat16."""

LARGEST_DROP = 0.01
_TEXTS, _BATCH = 1600, 32
_SHORT_LENGTH = 24  # the mean of SST-2
_HIDDEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # PyTorch alone reads them: the others would have more threads

Rows = dict[tuple[str, str], dict[str, Any]]


def _times_as_fast(name: str, other: str) -> Callable[[Rows], float]:
    return lambda rows: rows[FILE, name]["ratio"] / rows[FILE, other]["ratio"]


def _slower(work: str, precision: str) -> Callable[[Rows], float]:
    ours, theirs = f"posenc:openvino:{precision}", f"bert:openvino:{precision}"
    return lambda rows: rows[work, theirs]["ratio"] / rows[work, ours]["ratio"]


def _int8_in_the_gate(rows: Rows) -> float:
    """Its ratio; TypeError where no labels say what it costs."""
    row, whole = (rows[FILE, f"posenc:openvino:{precision}"] for precision in ("int8", "float32"))
    return row["ratio"] if whole["accuracy"] - row["accuracy"] <= LARGEST_DROP else 0.0


SERVING_TARGETS = (
    Target(f"`posenc:openvino:int8`, accuracy within {LARGEST_DROP}, / reference, file", _int8_in_the_gate, 10),
    Target("`posenc:openvino:bf16` / reference, file", lambda rows: rows[FILE, "posenc:openvino:bf16"]["ratio"], 7.5),
    Target("`posenc:torch:bf16` / `bert:torch:bf16`, file", _times_as_fast("posenc:torch:bf16", "bert:torch:bf16"), 1),
    *(
        Target(f"time of `posenc:openvino:{kind}` / `bert:openvino:{kind}`, {work}", _slower(work, kind), bound, True)
        for work, bound in ((FULL, 1.05), (SHORT, 1.1))
        for kind in ("float32", "bf16")
    ),
)


@without_bars()
def run_serving(
    contenders: Iterable[str] = CONTENDERS,
    *,
    checkpoint: str | None = None,
    stock: str | None = None,
    evaluate: str | None = None,
    calibrate: str | None = None,
    size: str = "minilm",
    texts: int = _TEXTS,
    rounds: int = 3,
    report: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], Any] = lambda results: None,
) -> dict[str, Any]:
    """Measures each contender in a process of its own, in turns; each runtime takes its own number of threads.

    From token ids to logits: what a tokenizer takes is the same for all.

    Args:
        contenders: of `CONTENDERS`; the reference is always among them.
        checkpoint: a PosEnc classifier. None: one with random weights, made on the spot.
        stock: a BERT classifier with the same tokenizer and labels. None: random weights, the checkpoint's sizes.
        evaluate: labelled texts: what the file holds, and what accuracy is of. None: random tokens, as long as SST-2's.
        calibrate: texts for OpenVINO's int8. None: sentences that come along.
        size: of the checkpoint that is made; see `SIZES`.
        texts: how many are predicted, drawn from the file and shuffled.
        rounds: turns of every contender.
        report: called with a line for each step.
        save: called with what is there after each round.

    Returns:
        `machine`, `settings`, `rows`, `left_out` (a contender and why) and `targets`. A row has `work` (`file`,
        `8x128`, `one text`), `mode`, `contender`, `milliseconds` (a batch; median over rounds) and their `quartiles`,
        `texts_per_second`, `ratio` (times as fast as the reference, within a round), `linear_share` (in PyTorch),
        `accuracy` (the task's metric; None without labels) and `agreement` with the same model in PyTorch in float32.

    Raises:
        UserError: a name is unknown, a file or checkpoint can't be used, or the reference can't be measured.
    """
    names = list(dict.fromkeys([REFERENCE, *contenders]))
    if unknown := [name for name in names if name not in CONTENDERS]:
        raise UserError(f"{unknown[0]!r} is unknown. Of --serving there are {', '.join(CONTENDERS)}.")
    if rounds < 1 or texts < 1:
        raise UserError(f"rounds={rounds}, texts={texts}: give at least one of each.")
    if checkpoint is None and (evaluate or stock):
        raise UserError("--evaluate and --stock go with a trained model. Give --checkpoint, too.")
    files = {"checkpoint": checkpoint, "stock": stock, "evaluate": evaluate, "calibrate": calibrate}
    settings: dict[str, Any] = {
        "contenders": names,
        "reference": REFERENCE,
        **{name: value and Path(value).name for name, value in files.items()},
        "size": size if checkpoint is None else None,
        "rounds": rounds,
    }
    results: dict[str, Any] = {"machine": machine(), "settings": settings, "rows": [], "left_out": []}
    with tempfile.TemporaryDirectory() as work:
        bench = _Bench(Path(work), checkpoint, stock, evaluate, calibrate, size, texts, report)
        settings["texts"] = len(bench.rows[FILE])
        jobs = bench.prepare(names, results["left_out"])
        results["machine"]["load_before"] = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
        measured: dict[str, list[dict[str, Any]]] = {}
        for turn in range(rounds):
            order = list(jobs)[turn % len(jobs) :] + list(jobs)[: turn % len(jobs)]
            for name in order:
                measured.setdefault(name, []).append(run_alone(jobs[name]))
                report(f"Round {turn + 1}, {name}: {measured[name][-1]['seconds'][FILE]:.2f} s for the file")
            results["rows"] = _rows(bench, jobs, measured)
            results["targets"] = judge(results["rows"], SERVING_TARGETS, "inference")
            save(results)
    return results


def run_alone(job: dict[str, Any]) -> dict[str, Any]:
    """What `timing.time_job` says of a job, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "hf_posenc.export.timing"]
    done = subprocess.run(command, input=json.dumps(job), env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The process of {job['folder']} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


class _Bench:
    """The folders that are measured, and the texts."""

    def __init__(
        self,
        work: Path,
        checkpoint: str | None,
        stock: str | None,
        evaluate: str | None,
        calibrate: str | None,
        size: str,
        texts: int,
        report: Callable[[str], None],
    ) -> None:
        self.work, self.report, self.evaluate, self.calibrate = work, report, evaluate, calibrate
        self.folders = {"posenc": checkpoint or str(_make_checkpoint(work / "posenc", size))}
        self.model: PreTrainedModel = load_any(self.folders["posenc"])
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(self.folders["posenc"])
        if problem_type_of(self.model) in (None, TOKENS):
            raise UserError(f"--checkpoint {checkpoint!r} is a {type(self.model).__name__}. Give a text classifier.")
        if input_length(self.model, self.tokenizer) < 128:
            raise UserError(
                f"--checkpoint {checkpoint!r} reads fewer than 128 tokens. Give one that reads longer texts."
            )
        self.folders["bert"] = str(self._stock(stock))
        self.questions = None if evaluate is None else read_labelled(evaluate, self.model, self.tokenizer)
        self.rows, self.labels = self._texts(texts)

    def _stock(self, stock: str | None) -> Path:
        """A BERT of the checkpoint's sizes and labels, beside its tokenizer."""
        ours = self.model.config
        if stock is not None:
            theirs = load_any(stock).config
            if (theirs.vocab_size, theirs.id2label) != (ours.vocab_size, ours.id2label):
                raise UserError(f"--stock {stock!r} has another vocabulary or other labels than --checkpoint.")
            return Path(stock)
        same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
        fields = {name: getattr(ours, name) for name in (*same, "pad_token_id", "id2label", "label2id", "problem_type")}
        torch.manual_seed(0)
        folder = self.work / "bert"
        BertForSequenceClassification(BertConfig(**fields)).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return folder

    def _texts(self, count: int) -> tuple[dict[str, Any], list[Any] | None]:
        """Token ids of each work, and the labels of the file's."""
        rows: list[Any]
        labels = None
        if self.questions is None:
            batches = make_batches("sst2", -(-count // _BATCH))
            lengths = [int(size) for batch in batches for size in batch["attention_mask"].sum(-1)][:count]
            rows = [self._random(length, seed) for seed, length in enumerate(lengths)]
        else:
            pairs = list(zip(self.questions.rows, self.questions.labels or (), strict=True))
            random.Random(0).shuffle(pairs)
            rows, labels = map(list, zip(*pairs[:count], strict=True))
        works = {FILE: rows, FULL: [self._random(128, seed) for seed in range(8)], SHORT: [self._random(_SHORT_LENGTH)]}
        return works, labels

    def _random(self, length: int, seed: int = 0) -> dict[str, list[int]]:
        ids = random.Random(seed).choices(range(5, self.model.config.vocab_size), k=length)
        return {"input_ids": ids, "attention_mask": [1] * length, "token_type_ids": [0] * length}

    def prepare(self, names: Iterable[str], left_out: list[dict[str, str]]) -> dict[str, dict[str, Any]]:
        """The job of each contender that can be prepared; the others, and why not, go into `left_out`."""
        jobs: dict[str, dict[str, Any]] = {}
        for name in names:
            model, backend, precision = name.split(":")[:3]
            try:
                folder = self.folders[model] if backend == "torch" else str(self._graph(model, backend, precision))
            except UserError as error:
                left_out.append({"contender": name, "why": one_line(error)})
                self.report(f"{name} is left out: {one_line(error)}")
                continue
            jobs[name] = {"folder": folder, "backend": backend, "precision": precision, "batch_size": _BATCH}
            jobs[name] |= {"as_they_come": name == REFERENCE, "rows": self.rows}
            jobs[name]["answers"] = str(self.work / f"{name.replace(':', '-')}.npy")
        return jobs

    def _graph(self, model: str, backend: str, precision: str) -> Path:
        """The exported folder; float32 and bf16 are one."""
        whole, small = (self.work / f"{model}-{backend}{end}" for end in ("", "-int8"))
        if not whole.is_dir():
            self.report(f"Exporting {model} for {backend}")
            export(self.folders[model], whole, backend)
        if precision != "int8":
            return whole
        self.report(f"Quantising {model} for {backend}")
        trained = model == "posenc" or Path(self.folders["bert"]).parent != self.work
        questions = self.questions if self.questions is not None and trained else self._some(own_texts(256))
        calibration = self._some(
            own_texts(300) if self.calibrate is None else read_training_texts(self.calibrate)[:300], 1
        )
        with tempfile.TemporaryDirectory(dir=self.work) as staging:
            folder = Path(shutil.copytree(whole, Path(staging) / "graph"))
            quantize_graph(
                folder,
                backend,
                questions,
                calibration,
                largest_drop=LARGEST_DROP,
                evaluated_on=self.evaluate,
                calibrated_on=self.calibrate or "sentences that come along",
            )
            return Path(shutil.move(folder, small))

    def _some(self, texts: list[str], size: int = _BATCH) -> Questions:
        return from_texts(texts, self.model, self.tokenizer, size)


def _make_checkpoint(folder: Path, size: str) -> Path:
    if size not in SIZES:
        raise UserError(f"size={size!r} is unknown. Choose one of {', '.join(SIZES)}.")
    build_model("rope", size).save_pretrained(folder)  # type: ignore[operator]
    train_tokenizer(own_texts(1000)).save_pretrained(folder)
    return folder


def _rows(
    bench: _Bench, jobs: dict[str, dict[str, Any]], measured: dict[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    problem = problem_type_of(bench.model)
    known = Questions([], [], False, problem, bench.labels)
    rows = []
    for work in (FILE, FULL, SHORT):
        for name in (name for name in CONTENDERS if name in measured):
            turns = measured[name]
            texts, batches = len(bench.rows[work]), turns[0]["batches"] if work == FILE else 1
            taken = [turn["seconds"][work] for turn in turns]
            reference = [turn["seconds"][work] for turn in measured[REFERENCE]]
            shares = [t["linear_seconds"][work] / t["seconds"][work] for t in turns if work in t["linear_seconds"]]
            answers = list(np.load(jobs[name]["answers"]))
            whole = f"{name.split(':')[0]}:torch:float32"
            whole = whole if whole in measured else REFERENCE if name.startswith("bert") else name
            is_random = name.startswith("bert") and Path(bench.folders["bert"]).parent == bench.work
            scores = {} if is_random else score(answers, known)
            quartiles = statistics.quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else taken * 3
            rows.append(
                {
                    "work": work,
                    "mode": "inference",
                    "contender": name,
                    "milliseconds": round(quartiles[1] / batches * 1000, 2),
                    "quartiles": [round(quartiles[n] / batches * 1000, 2) for n in (0, 2)],
                    "texts_per_second": round(texts / quartiles[1]),
                    "ratio": round(statistics.median(a / b for a, b in zip(reference, taken, strict=True)), 3),
                    "linear_share": round(statistics.median(shares), 3) if shares else None,
                    "accuracy": round(scores[GATES[str(problem)]], 4) if scores else None,
                    "agreement": round(agreement(list(np.load(jobs[whole]["answers"])), answers, known), 4),
                }
            )
    return rows
