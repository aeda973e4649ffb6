"""Runs the contenders in turns and collects what each took."""

import itertools
import os
import platform
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from torch import Tensor

from hf_posenc.errors import UserError
from hf_posenc.kernels import onednn_is_faster
from hf_posenc.machine import processor
from hf_posenc.model.configuration_posenc import POSENC_VERSION

from .contenders import LinearLayers, build_model, count_flops, linear_shapes, make_step, variants_of
from .parts import profile_parts
from .work import make_batches, peak_memory, ratio, take_turns


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What the numbers depend on: processor, threads, versions."""
    facts: dict[str, Any] = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "linear_layers": "oneDNN" if onednn_is_faster() else "PyTorch's default",
        "gpu": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "hf_posenc": POSENC_VERSION,
        "python": platform.python_version(),
    }
    if hasattr(os, "getloadavg"):
        facts["load_before"] = round(os.getloadavg()[0], 1)
    return facts


def run_benchmark(
    contenders: Iterable[str] = ("bert", "bert:equal_dropout", "none", "rope", "alibi", "t5"),
    *,
    sizes: Iterable[str] = ("minilm",),
    works: Iterable[str] = ("sst2", "8x128"),
    modes: Iterable[str] = ("inference", "training"),
    dtype: str = "float32",
    reference_dtype: str = "float32",
    dropout: bool = True,
    rounds: int = 8,
    device: str | None = None,
    profile: bool = False,
    report: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], Any] = lambda results: None,
) -> dict[str, Any]:
    """Measures every contender on every size, work and mode.

    Args:
        contenders: schemes, and names of `PEERS`, with `VARIANTS`. Ratios are to the first one, and of ours to `none`
            where it is there.
        sizes, works, modes: see `SIZES`, `make_batches`, `MODES`.
        dtype: `float32`, `bfloat16` or `float16`, of all but the first contender: of the weights in inference, of
            autocast in training.
        reference_dtype: of the first.
        dropout: False: none in any contender. True: each has its own defaults.
        rounds: turns that count.
        device: `cpu`, `cuda`, ... None: a GPU if there is one.
        profile: say also where the time goes.
        report: called with a line per measurement, and one per contender that is left out.
        save: called with what is there after each size, work and mode, so that what fails later loses nothing.

    Returns:
        `machine`, `settings`, `rows` and `left_out`. A row has `size`, `work`, `mode`, `contender`, `dtype`,
        `milliseconds` (median), `quartiles`, `ratio` (times as fast as the first), `cost` (times the time of `none`),
        `tokens_per_second` (real ones), `tflops` (10^12 a second, see `count_flops`), `peak_mb`, `linear_share` (time
        of the linear layers alone, on the real tokens, over its own: the limit is 1), and `parts` if asked (see
        `profile_parts`). `left_out` has a contender and why for each that can't be built or whose first step fails:
        a package isn't installed, or this machine or precision doesn't do.

    Raises:
        UserError: a name or the device is unknown, there is nothing to measure, or the first contender doesn't run.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    settings: dict[str, Any] = {"contenders": list(contenders), "sizes": list(sizes), "works": list(works)}
    settings |= {"modes": list(modes), "dtype": dtype, "reference_dtype": reference_dtype, "dropout": dropout}
    settings |= {"rounds": rounds, "device": device}
    _check(settings)
    results: dict[str, Any] = {"machine": machine(device), "settings": settings, "rows": [], "left_out": []}
    for size, work in itertools.product(settings["sizes"], settings["works"]):
        batches = make_batches(work, min(rounds, 8), device)
        for mode in settings["modes"]:
            rows, left_out = _measure(settings, size, work, mode, batches, profile, report)
            results["rows"] += rows
            results["left_out"] += left_out
            save(results)
    measured = {row["contender"] for row in results["rows"]}
    settings["contenders"] = [name for name in settings["contenders"] if name in measured]
    return results


def _measure(
    settings: dict[str, Any],
    size: str,
    work: str,
    mode: str,
    batches: list[dict[str, Tensor]],
    profile: bool,
    report: Callable[[str], None],
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The rows of one size, work and mode, and who is left out."""
    where = {"size": size, "work": work, "mode": mode}
    first, device = settings["contenders"][0], settings["device"]
    longest = max(512, *(batch["input_ids"].shape[1] for batch in batches))
    most = max(int(batch["attention_mask"].sum()) for batch in batches)
    steps: dict[str, Any] = {}
    limits: dict[Any, Any] = {}
    limit_of, flops, left_out = {}, {}, []
    for name in settings["contenders"]:
        dtype = _dtype(settings, name)
        try:
            variants = variants_of(name)[1]
            if "varlen" in variants and (not device.startswith("cuda") or dtype == torch.float32):
                raise UserError("varlen attention needs a GPU, and bfloat16 or float16.")
            model = build_model(name, size, longest, device, dropout=settings["dropout"])
            step = make_step(model, mode, dtype, variants)
            for batch in batches:  # kernels are chosen, compiled and tuned for each shape
                step(batch)
        except Exception as error:
            if name == first:
                raise UserError(f"The reference {name!r} can't be measured: {error}") from error
            left_out.append({**where, "contender": name, "why": f"{type(error).__name__}: {error}".splitlines()[0]})
            report(f"{name} is left out of {size} {work} {mode}: {left_out[-1]['why']}")
            continue
        steps[name], flops[name] = step, [count_flops(model, batch, mode) for batch in batches]
        limit_of[name] = key = (linear_shapes(model), str(dtype))
        if key not in limits:
            products = LinearLayers(key[0], most).to(device, dtype)
            limits[key] = make_step(products, mode, dtype)
            for batch in batches:
                limits[key](batch)
    seconds: dict[Any, list[float]] = take_turns({**steps, **limits}, batches, settings["rounds"], warmup=0)
    rows = []
    for name, step in steps.items():
        row = {
            **where,
            "contender": name,
            "dtype": str(_dtype(settings, name)).removeprefix("torch."),
            **_timings(seconds, name),
            "tokens_per_second": round(_rate(seconds[name], [int(b["attention_mask"].sum()) for b in batches])),
            "tflops": round(_rate(seconds[name], flops[name]) / 1e12, 3),
            "linear_share": round(ratio(seconds[limit_of[name]], seconds[name]), 3),
            "peak_mb": _rounded(peak_memory(step, batches[0])),
        }
        if profile:
            row["parts"] = profile_parts(step, batches[0])
        rows.append(row)
        report(
            f"{size} {work} {mode} {name}: {row['milliseconds']} ms, {row['ratio']} x {first}, "
            f"{row['linear_share']:.0%} of it linear layers"
        )
    return rows, left_out


def _dtype(settings: dict[str, Any], name: str) -> torch.dtype:
    return getattr(torch, settings["reference_dtype" if name == settings["contenders"][0] else "dtype"])


def _check(settings: dict[str, Any]) -> None:
    """Refuses what can't be measured, before anything is."""
    kind = settings["device"].split(":")[0]
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        usable = "cpu, cuda" if torch.cuda.is_available() else "cpu: PyTorch finds no GPU"
        raise UserError(f"device={settings['device']!r} can't be used. Here it is {usable}.")
    lists = {name: settings[name] for name in ("contenders", "sizes", "works", "modes")}
    if not all(lists.values()) or settings["rounds"] < 1:
        raise UserError(f"{lists}, rounds={settings['rounds']!r}: give at least one of each.")
    for mode in settings["modes"]:
        make_step(torch.nn.Linear(1, 1), mode)
    for size, name in itertools.product(settings["sizes"], settings["contenders"]):
        _check_name(name, size)
    for work in settings["works"]:
        make_batches(work, 1)
    for field in ("dtype", "reference_dtype"):
        if settings[field] not in ("float32", "bfloat16", "float16"):
            raise UserError(f"{field}={settings[field]!r} is unknown. Choose float32, bfloat16 or float16.")


def _check_name(name: str, size: str) -> None:
    try:
        with torch.device("meta"):
            build_model(name, size, device="meta")
    except ImportError:  # a package that isn't installed: the contender is left out
        pass


def _timings(seconds: dict[str, list[float]], name: str) -> dict[str, Any]:
    """Milliseconds of a contender, beside the first one's and those of `none`."""
    low, middle, high = _quartiles(seconds[name])
    first = next(iter(seconds))
    return {
        "milliseconds": round(middle * 1000, 2),
        "quartiles": [round(low * 1000, 2), round(high * 1000, 2)],
        "ratio": round(ratio(seconds[first], seconds[name]), 3),
        "cost": round(1 / ratio(seconds["none"], seconds[name]), 3) if "none" in seconds else None,
    }


def _rate(seconds: list[float], amounts: list[Any]) -> float:
    """What is done per second, of an amount for each batch: the median over the turns."""
    turns = ((amounts[turn % len(amounts)], taken) for turn, taken in enumerate(seconds))
    return statistics.median(amount / taken for amount, taken in turns)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
