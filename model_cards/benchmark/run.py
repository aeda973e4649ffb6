"""Runs the contenders in turns and collects what each took."""

import dataclasses
import itertools
import re
import statistics
import sys
from typing import Any

import torch
import transformers
from torch import Tensor

from hf_posenc.errors import UserError, one_line
from hf_posenc.machine import processor
from hf_posenc.model.configuration_posenc import POSENC_VERSION

from .contenders import LinearLayers, build_model, linear_shapes, make_step
from .work import Step, make_batches, peak_memory, ratio, take_turns


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the numbers depend on: processor, threads, versions."""
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "hf_posenc": POSENC_VERSION,
    }


def slug(name: str) -> str:
    """A processor's name as a part of a file's name: `amd-epyc-family-25-model-17`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclasses.dataclass
class Settings:
    """Who is measured on what: every contender on every size, work and mode."""

    contenders: tuple[str, ...] = ("bert", "bert:equal_dropout", "none", "rope", "alibi", "t5")
    """Schemes, and names of `PEERS`, with `VARIANTS`. Ratios are to the first one, and costs to `none`."""
    sizes: tuple[str, ...] = ("minilm",)
    works: tuple[str, ...] = ("sst2", "8x128")
    """See `make_batches`."""
    modes: tuple[str, ...] = ("inference", "training")
    dtype: str = "float32"
    """Of all but the first contender: of the weights in inference, of autocast in training."""
    reference_dtype: str = "float32"
    """Of the first."""
    dropout: bool = True
    """False: none in any contender. True: each has its own defaults."""
    rounds: int = 8
    """Turns."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

    def dtype_of(self, name: str) -> torch.dtype:
        """What a contender computes in."""
        return getattr(torch, self.reference_dtype if name == self.contenders[0] else self.dtype)


def run_benchmark(settings: Settings) -> dict[str, Any]:
    """Measures, and says on standard error what was measured.

    Returns:
        `machine`, `settings`, `rows` and `left_out`. A row has `size`, `work`, `mode`, `contender`, `dtype`,
        `milliseconds` (median), `ratio` (times as fast as the first), `cost` (times the time of `none`),
        `tokens_per_second` (real ones), `peak_mb`, `linear_share` (time of the linear layers alone, on the real
        tokens, over its own: the limit is 1). `left_out` has a contender and why for each that can't be built or whose
        first step fails, such as one that this machine can't run.

    Raises:
        UserError: a work is unknown, or the first contender doesn't run.
    """
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    for size, work in itertools.product(settings.sizes, settings.works):
        batches = make_batches(work, min(settings.rounds, 8), settings.device)
        for mode in settings.modes:
            _measure(settings, {"size": size, "work": work, "mode": mode}, batches, rows, left_out)
    described = dataclasses.asdict(settings)
    measured = {row["contender"] for row in rows}
    described["contenders"] = [name for name in settings.contenders if name in measured]
    return {"machine": machine(settings.device), "settings": described, "rows": rows, "left_out": left_out}


def _measure(
    settings: Settings,
    where: dict[str, str],
    batches: list[dict[str, Tensor]],
    rows: list[dict[str, Any]],
    left_out: list[dict[str, str]],
) -> None:
    """Adds the rows of one size, work and mode, and who is left out there."""
    first, place = settings.contenders[0], " ".join(where.values())
    longest = max(512, *(batch["input_ids"].shape[1] for batch in batches))
    tokens = [int(batch["attention_mask"].sum()) for batch in batches]
    steps: dict[str, Step] = {}
    linear: dict[Any, Step] = {}
    linear_of = {}
    for name in settings.contenders:
        dtype = settings.dtype_of(name)
        try:
            model = build_model(name, where["size"], longest, settings.device, dropout=settings.dropout)
            step = make_step(model, where["mode"], dtype, with_kernels="plain" not in name.split(":"))
            _warm_up(step, batches)
        except Exception as error:
            if name == first:
                raise UserError(f"The reference {name!r} can't be measured: {error}") from error
            left_out.append({**where, "contender": name, "why": f"{type(error).__name__}: {one_line(error):.200}"})
            print(f"{name} is left out of {place}: {left_out[-1]['why']}", file=sys.stderr)
            continue
        steps[name], linear_of[name] = step, (linear_shapes(model), dtype)
        if linear_of[name] not in linear:
            products = LinearLayers(linear_shapes(model), max(tokens)).to(settings.device, dtype)
            linear[linear_of[name]] = make_step(products, where["mode"], dtype)
            _warm_up(linear[linear_of[name]], batches)
    seconds = take_turns({**steps, **linear}, batches, settings.rounds)
    for name, step in steps.items():
        taken, peak = seconds[name], peak_memory(step, batches[0])
        row = {
            **where,
            "contender": name,
            "dtype": str(settings.dtype_of(name)).removeprefix("torch."),
            "milliseconds": round(statistics.median(taken) * 1000, 2),
            "ratio": round(ratio(seconds[first], taken), 3),
            "cost": round(ratio(taken, seconds["none"]), 3) if "none" in seconds else None,
            "tokens_per_second": round(
                statistics.median(tokens[turn % len(tokens)] / each for turn, each in enumerate(taken))
            ),
            "linear_share": round(ratio(seconds[linear_of[name]], taken), 3),
            "peak_mb": None if peak is None else round(peak, 1),
        }
        rows.append(row)
        print(f"{place} {name}: {row['milliseconds']} ms, {row['ratio']} x {first}", file=sys.stderr)


def _warm_up(step: Step, batches: list[dict[str, Tensor]]) -> None:
    """Kernels are chosen, compiled and tuned for each shape."""
    for batch in batches:
        step(batch)
