"""Measures how fast a classifier is served: PyTorch, ONNX Runtime and OpenVINO, each alone, beside stock BERT.

python -m model_cards.benchmark.serving --checkpoint DIR --evaluate FILE
"""

import dataclasses
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from hf_posenc.checkpoints.loading import knowledge, load_any
from hf_posenc.checkpoints.opening import open_checkpoint
from hf_posenc.checkpoints.tokenizers import open_tokenizer
from hf_posenc.errors import run_script
from hf_posenc.exporting.int8 import Questions, agreement, read_labelled
from hf_posenc.exporting.run import export
from hf_posenc.inference.logits import Row

from .run import machine
from .tables import SERVING, output_of, rows_table, show
from .timing import BATCH, FILE, FULL, SHORT
from .work import ratio

REFERENCE = "bert:torch:float32:as_they_come"
CONTENDERS = (
    *(REFERENCE, "bert:torch:float32", "bert:torch:bf16"),
    *("bert:openvino:float32", "bert:openvino:bf16", "bert:openvino:int8"),
    *("posenc:torch:float32", "posenc:torch:bf16", "posenc:onnx:float32", "posenc:onnx:int8"),
    *("posenc:openvino:float32", "posenc:openvino:bf16", "posenc:openvino:int8"),
)
"""MODEL:RUNTIME:PRECISION. All sort a file into batches of like lengths, as `hf-posenc predict` does, but the
reference, which is PyTorch in float32 on batches as they come. bf16 in PyTorch is weights in bfloat16."""

_TEXTS, _ROUNDS = 1600, 3
_SHORT_LENGTH = 24  # the mean of SST-2
_HIDDEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # PyTorch alone reads them: the others would have more threads


def run_serving(checkpoint: str, evaluate: str, contenders: Sequence[str] = CONTENDERS) -> dict[str, Any]:
    """Measures each contender in a process of its own, in turns; each runtime takes its own number of threads.

    From token ids to logits: what a tokenizer takes is the same for all. BERT has the checkpoint's sizes, and random
    weights.

    Args:
        checkpoint: a PosEnc classifier that reads 128 tokens or more.
        evaluate: labelled texts, of which 1,600 are predicted.
        contenders: of `CONTENDERS`, with the reference and both models in PyTorch in float32.

    Returns:
        `machine`, `settings` and `rows`. A row has `work` (`file`, `8x128`, `one text`), `contender`,
        `milliseconds` (a batch; median over rounds), `texts_per_second`, `ratio` (times as fast as the reference,
        within a round), `accuracy` (the task's metric; None of random weights) and `agreement` with the same model in
        PyTorch in float32.

    Raises:
        UserError: the checkpoint or the texts can't be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        opened = open_checkpoint(checkpoint)
        model, tokenizer = load_any(opened), open_tokenizer(checkpoint)
        folders = {"posenc": checkpoint, "bert": str(work / "bert")}
        _stock_bert(model).save_pretrained(work / "bert")
        tokenizer.save_pretrained(work / "bert")
        known = _some(read_labelled(evaluate, model, tokenizer, knowledge(model.config, opened)))
        vocabulary = model.config.vocab_size
        rows = {FILE: known.rows, FULL: [_random(vocabulary, 128, seed) for seed in range(8)]}
        rows[SHORT] = [_random(vocabulary, _SHORT_LENGTH)]
        jobs: dict[str, dict[str, Any]] = {}
        for name in contenders:
            kind, backend, precision = name.split(":")[:3]
            place, out = folders[kind], str(work / name.replace(":", "-"))
            if backend != "torch":
                print(f"Exporting {name}", file=sys.stderr)
                export(place, out, to=backend, quantize="int8" if precision == "int8" else None)
                place = out
            jobs[name] = {"folder": place, "backend": backend, "precision": precision, "rows": rows}
            jobs[name] |= {"window": 1 if name == REFERENCE else 32, "answers": f"{out}.npy"}
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
        for turn in range(_ROUNDS):
            first = turn % len(jobs)
            for name in [*jobs][first:] + [*jobs][:first]:
                measured[name].append(_run_alone(jobs[name]))
                print(f"Round {turn + 1}, {name}: {measured[name][-1][FILE]:.2f} s for the file", file=sys.stderr)
        answers = {name: list(np.load(job["answers"])) for name, job in jobs.items()}
    files = {"checkpoint": Path(checkpoint).name, "evaluate": Path(evaluate).name}
    settings = {"reference": REFERENCE, **files, "contenders": list(jobs), "rounds": _ROUNDS, "texts": len(known.rows)}
    counts = {name: len(texts) for name, texts in rows.items()}
    return {"machine": machine(), "settings": settings, "rows": _rows(measured, answers, counts, known)}


def _stock_bert(model: PreTrainedModel) -> BertForSequenceClassification:
    """A BERT of the checkpoint's sizes and labels."""
    same = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
        *("pad_token_id", "id2label", "label2id", "problem_type"),
    )
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**{name: getattr(model.config, name) for name in same}))


def _some(questions: Questions) -> Questions:
    """At most 1,600 of them, shuffled."""
    pairs = list(zip(questions.rows, questions.labels or (), strict=True))
    random.Random(0).shuffle(pairs)
    rows, labels = map(list, zip(*pairs[:_TEXTS], strict=True))
    return dataclasses.replace(questions, rows=rows, labels=labels)


def _random(vocabulary: int, length: int, seed: int = 0) -> Row:
    ids = random.Random(seed).choices(range(5, vocabulary), k=length)
    return {"input_ids": ids, "attention_mask": [1] * length, "token_type_ids": [0] * length}


def _run_alone(job: dict[str, Any]) -> dict[str, float]:
    """What `timing.time_job` says of a job, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in _HIDDEN} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "model_cards.benchmark.timing"]
    done = subprocess.run(
        command, input=json.dumps(job), env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _rows(
    measured: dict[str, list[dict[str, float]]],
    answers: dict[str, list[np.ndarray]],
    texts: dict[str, int],
    known: Questions,
) -> list[dict[str, Any]]:
    rows = []
    for work, count in texts.items():
        batches = math.ceil(count / BATCH)
        reference = [turn[work] for turn in measured[REFERENCE]]
        for name, turns in measured.items():
            taken = [turn[work] for turn in turns]
            middle, model = statistics.median(taken), name.split(":")[0]
            score = round(known.score(answers[name]), 4) if model == "posenc" else None
            rows.append(
                {
                    "work": work,
                    "contender": name,
                    "milliseconds": round(middle / batches * 1000, 2),
                    "texts_per_second": round(count / middle),
                    "ratio": round(ratio(reference, taken), 3),
                    "accuracy": score,
                    "agreement": round(
                        agreement(answers[f"{model}:torch:float32"], answers[name], known.problem_type), 4
                    ),
                }
            )
    return rows


def main() -> None:
    """The command."""
    parser = output_of(__doc__)
    parser.add_argument("--checkpoint", metavar="DIR", required=True, help="a text classifier")
    parser.add_argument("--evaluate", metavar="FILE", required=True, help="labelled texts")
    arguments = parser.parse_args()
    results = run_serving(arguments.checkpoint, arguments.evaluate)
    show(results, [rows_table(results["rows"], SERVING)], arguments.output)


if __name__ == "__main__":
    run_script(main)
