"""The batches that contenders run on, and how a step's time and memory are taken."""

import ctypes
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_posenc.errors import UserError

SST2_LENGTHS = (
    *(0, 0, 0, 0, 16, 43, 66, 75, 107, 128, 149, 173, 171, 199, 195, 190, 209, 208, 235, 240, 245, 212, 240, 234, 223),
    *(228, 223, 205, 221, 210, 184, 169, 162, 167, 165, 137, 140, 124, 114, 84, 91, 90, 72, 78, 85, 49, 51, 46, 42, 30),
    *(19, 23, 26, 29, 16, 13, 18, 9, 7, 9, 4, 4, 1, 7, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1),
)
"""How many of 6,917 sentences of SST-2 (Socher et al. 2013) have 0, 1, 2, ... word pieces of bert-base-uncased."""

Step = Callable[[dict[str, Tensor]], None]

VOCAB_SIZE = 30_522
MIXED_ROWS, MIXED_LENGTHS = 16, (64, 4096)
PROTEIN_ROWS, PROTEIN_MEDIAN, PROTEIN_SPREAD, PROTEIN_LONGEST = 8, 300, 0.7, 1024
"""Lengths of proteins: log-normal, with this median and standard deviation of the logarithm, cut at the longest."""


def make_batches(work: str, count: int, device: str = "cpu", seed: int = 0) -> list[dict[str, Tensor]]:
    """Batches as a tokenizer and DataCollatorWithPadding make them, of random tokens.

    Args:
        work: `sst2`: 32 sentences with the lengths of SST-2, padded to the longest, or `sst2:256`, as many as that;
            `sst2_sorted`: the sentences of all batches, sorted by length; `mixed`: 16 documents of 64 to 4,096 tokens,
            the logarithm of their length uniform, padded to the longest; `proteins`: 8 with lengths as proteins have
            them, padded to the longest; or `8x128`: 8 texts of 128 tokens.
        count: number of batches.
        device: where to put them.
        seed: of lengths and tokens.

    Raises:
        UserError: `work` is none of these.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for lengths in _lengths(work, count, random.Random(seed)):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(-1)
        batch = {
            "input_ids": torch.randint(1000, VOCAB_SIZE, mask.shape, generator=generator) * mask,
            "attention_mask": mask.long(),
            "token_type_ids": torch.zeros_like(mask, dtype=torch.int64),
            "labels": torch.randint(0, 2, (len(lengths),), generator=generator),
        }
        batches.append({name: tensor.to(device) for name, tensor in batch.items()})
    return batches


def _lengths(work: str, count: int, draw: random.Random) -> list[list[int]]:
    """Of the texts of each batch."""
    name, _, many = work.partition(":")
    if name in ("sst2", "sst2_sorted") and (many or "32").isdecimal():
        size = int(many or 32)
        drawn = draw.choices(range(len(SST2_LENGTHS)), SST2_LENGTHS, k=size * count)
        if name == "sst2_sorted":
            drawn.sort()
        return [drawn[size * number : size * (number + 1)] for number in range(count)]
    if work == "mixed":
        low, high = (math.log(length) for length in MIXED_LENGTHS)
        return [[round(math.exp(draw.uniform(low, high))) for _ in range(MIXED_ROWS)] for _ in range(count)]
    if work == "proteins":
        middle = math.log(PROTEIN_MEDIAN)
        drawn = [round(draw.lognormvariate(middle, PROTEIN_SPREAD)) for _ in range(PROTEIN_ROWS * count)]
        cut = [min(max(length, 2), PROTEIN_LONGEST) for length in drawn]
        return [cut[PROTEIN_ROWS * number : PROTEIN_ROWS * (number + 1)] for number in range(count)]
    rows, _, tokens = work.partition("x")
    if not (rows.isdecimal() and tokens.isdecimal() and int(rows) and int(tokens)):
        known = "sst2, sst2:256, sst2_sorted, mixed, proteins"
        raise UserError(f"work={work!r} is unknown. Give {known}, or ROWSxTOKENS such as 8x128.")
    return [[int(tokens)] * int(rows)] * count


def take_turns(steps: dict[Any, Step], batches: list[dict[str, Tensor]], rounds: int) -> dict[Any, list[float]]:
    """Seconds of each contender in each of `rounds` turns, all on the same batch and each turn in another order.

    On a GPU the time is that between two CUDA events.
    """
    names = list(steps)
    seconds: dict[Any, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(_timed(steps[name], batches[turn % len(batches)]))
    return seconds


def _timed(step: Step, batch: dict[str, Tensor]) -> float:
    if batch["input_ids"].is_cuda:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step(batch)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000
    start_time = time.perf_counter()
    step(batch)
    return time.perf_counter() - start_time


def ratio(reference: list[float], other: list[float]) -> float:
    """How many times as fast the other is: the median over the turns."""
    return statistics.median(a / b for a, b in zip(reference, other, strict=True))


def peak_memory(step: Step, batch: dict[str, Tensor]) -> float | None:
    """Megabytes by which a step raises the memory in use: of the GPU, or the process's resident memory on Linux."""
    if batch["input_ids"].is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(batch)
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what earlier steps freed goes back to the system
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is set to what is in use
        before_kb = _status("VmHWM")
        step(batch)
        return (_status("VmHWM") - before_kb) / 1024
    except (OSError, AttributeError, KeyError):
        return None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}[field]
