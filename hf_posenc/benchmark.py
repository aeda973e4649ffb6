"""How fast the encoder is: schemes and peers of equal dimensions on the same batches, in turns.

Contenders take turns on every batch and are compared within the turn, so that what else the machine does hits all
alike; a ratio is the median over the turns.
"""

import contextlib
import ctypes
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor

from hf_posenc.errors import UserError
from hf_posenc.files import write_bytes
from hf_posenc.kernels import apply_linear, onednn_is_faster
from hf_posenc.machine import processor
from hf_posenc.markdown import markdown_table
from hf_posenc.model.configuration_posenc import POSENC_VERSION
from hf_posenc.model.modeling_posenc import PosEncForSequenceClassification
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.schemes.plots import save_figure

SIZES = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""Dimensions of the encoders; MiniLM's are those of all-MiniLM-L6-v2, base's those of bert-base."""

PEERS = ("bert", "roformer", "modernbert", "nomic_bert")
"""Encoders of transformers, with their default dropouts."""

BACKENDS = ("eager", "sdpa", "flex_attention", "flash_attention_2")
"""Variants of any contender, `NAME:BACKEND`. The others: `PEER:equal_dropout` has no attention dropout, as ours,
`SCHEME:frozen_words` doesn't train its word embeddings."""

MODES = ("inference", "training", "step")
"""Forward; forward and backward; those with clipped gradients and fused AdamW, as the Trainer does it."""

SST2_LENGTHS = (
    *(0, 0, 0, 0, 16, 43, 66, 75, 107, 128, 149, 173, 171, 199, 195, 190, 209, 208, 235, 240, 245, 212, 240, 234, 223),
    *(228, 223, 205, 221, 210, 184, 169, 162, 167, 165, 137, 140, 124, 114, 84, 91, 90, 72, 78, 85, 49, 51, 46, 42, 30),
    *(19, 23, 26, 29, 16, 13, 18, 9, 7, 9, 4, 4, 1, 7, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1),
)
"""How many of 6,917 sentences of SST-2 (Socher et al. 2013) have 0, 1, 2, ... word pieces of bert-base-uncased."""

VOCAB_SIZE = 30_522


def make_batches(work: str, count: int, device: torch.device | str = "cpu", seed: int = 0) -> list[dict[str, Tensor]]:
    """Batches as a tokenizer and DataCollatorWithPadding make them, of random tokens.

    Args:
        work: `sst2`: 32 sentences with the lengths of SST-2, padded to the longest; `sst2_sorted`: the sentences of all
            batches, sorted by length; or `8x128`: 8 texts of 128 tokens.
        count: number of batches.
        device: where to put them.
        seed: of lengths and tokens.

    Raises:
        UserError: `work` is neither.
    """
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, _, tokens = work.partition("x")
    is_sst2 = work in ("sst2", "sst2_sorted")
    if not is_sst2 and not (rows.isdecimal() and tokens.isdecimal() and int(rows) and int(tokens)):
        raise UserError(f"work={work!r} is unknown. Give sst2, sst2_sorted, or ROWSxTOKENS such as 8x128.")
    drawn = draw.choices(range(len(SST2_LENGTHS)), SST2_LENGTHS, k=32 * count) if is_sst2 else []
    if work == "sst2_sorted":
        drawn.sort()
    batches = []
    for number in range(count):
        lengths = drawn[32 * number : 32 * (number + 1)] if is_sst2 else [int(tokens)] * int(rows)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(-1)
        batch = {
            "input_ids": torch.randint(1000, VOCAB_SIZE, mask.shape, generator=generator) * mask,
            "attention_mask": mask.long(),
            "token_type_ids": torch.zeros_like(mask, dtype=torch.int64),
            "labels": torch.randint(0, 2, (len(lengths),), generator=generator),
        }
        batches.append({name: tensor.to(device) for name, tensor in batch.items()})
    return batches


def build_model(name: str, size: str, max_positions: int = 512, device: torch.device | str = "cpu") -> torch.nn.Module:
    """A classifier of two labels with random weights: a scheme of ours, or one of `PEERS`.

    Raises:
        UserError: the size or the name is unknown.
    """
    if size not in SIZES:
        raise UserError(f"size={size!r} is unknown. Choose one of {', '.join(SIZES)}.")
    torch.manual_seed(0)
    dimensions: dict[str, Any] = {
        **SIZES[size],
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": max_positions,
        "num_labels": 2,
    }
    peer, _, variant = name.partition(":")
    known = ("equal_dropout" if peer in PEERS else "frozen_words", *BACKENDS)
    if variant not in ("", *known):
        raise UserError(f"{name!r} is unknown. Variants are {', '.join(f'{peer}:{one}' for one in known)}.")
    model: Any
    if variant in BACKENDS:
        dimensions["attn_implementation"] = variant
    if variant == "equal_dropout":
        dimensions["attention_dropout" if peer == "modernbert" else "attention_probs_dropout_prob"] = 0.0
    if peer not in PEERS:
        model = PosEncForSequenceClassification(PosEncConfig(**dimensions, position_embedding_type=peer))
        model.get_input_embeddings().requires_grad_(variant != "frozen_words")
    elif peer == "bert":
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**dimensions))
    elif peer == "roformer":
        model = transformers.RoFormerForSequenceClassification(transformers.RoFormerConfig(**dimensions))
    elif peer == "modernbert":
        for number, token in enumerate(("pad", "bos", "eos", "cls", "sep")):  # its own lie past this vocabulary
            dimensions[f"{token}_token_id"] = number
        model = transformers.ModernBertForSequenceClassification(transformers.ModernBertConfig(**dimensions))
    else:
        model = transformers.NomicBertForSequenceClassification(transformers.NomicBertConfig(**dimensions))
    return model.to(device)


def make_step(
    model: torch.nn.Module, mode: str, dtype: torch.dtype = torch.float32
) -> Callable[[dict[str, Tensor]], None]:
    """What one turn does with a batch: see `MODES`. `dtype` is the weights' in inference, autocast's in training."""
    if mode not in MODES:
        raise UserError(f"mode={mode!r} is unknown. Choose one of {', '.join(MODES)}.")
    kind = next(model.parameters()).device.type

    def cast() -> Any:
        return contextlib.nullcontext() if dtype == torch.float32 else torch.autocast(kind, dtype=dtype)

    model.train(mode != "inference")
    if mode == "inference":
        model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True) if mode == "step" else None

    def step(batch: dict[str, Tensor]) -> None:
        if mode == "inference":
            with torch.no_grad():
                model(**batch)
            return
        with cast():
            loss = model(**batch).loss
        loss.backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.zero_grad(set_to_none=True)

    return step


def take_turns(
    steps: dict[str, Callable[[Any], Any]], batches: list[Any], rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of each contender in each of `rounds` turns, all on the same batch and each turn in another order.

    On a GPU the time is that between two CUDA events.
    """
    names, seconds = list(steps), {name: [] for name in steps}  # type: ignore[var-annotated]
    for turn in range(-warmup, rounds):
        batch = batches[turn % len(batches)]
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            taken = _timed(steps[name], batch)
            if turn >= 0:
                seconds[name].append(taken)
    return seconds


def _on_gpu(batch: Any) -> bool:
    return isinstance(batch, dict) and any(isinstance(t, Tensor) and t.is_cuda for t in batch.values())


def _timed(step: Callable[[Any], Any], batch: Any) -> float:
    if _on_gpu(batch):
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


def peak_memory(step: Callable[[Any], Any], batch: Any) -> float | None:
    """Megabytes by which a step raises the memory in use: of the GPU, or the process's resident memory on Linux."""
    if _on_gpu(batch):
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


PARTS = {
    "linear layers": ("OneDNNLinear", "_linear_pointwise", "aten::linear", "AddmmBackward", "MmBackward"),
    "attention": ("BiasedAttention", "scaled_dot_product", "oftmax", "aten::bmm", "aten::matmul", "BmmBackward"),
    "rotation": ("addcmul", "Addcmul"),
    "dropout": ("Dropout", "dropout", "bernoulli"),
    "layer norms": ("layer_norm", "LayerNorm"),
    "activation": ("gelu", "Gelu"),
    "embeddings": ("embedding", "Embedding"),
    "optimizer": ("Optimizer.step", "_foreach_norm", "clip", "linalg_vector_norm", "_foreach_mul"),
}
"""Parts of a step, and what the names of their operations hold; the outermost operation that fits one decides."""


def profile_parts(step: Callable[[Any], Any], batch: Any, repeats: int = 3) -> dict[str, float]:
    """Milliseconds of a step by what they go into: `PARTS`, and `other` (residuals, moving tokens, Python between).

    Measured with PyTorch's profiler, which slows small operations down.
    """
    step(batch)
    device = "cuda" if _on_gpu(batch) else "cpu"
    activities = {torch.profiler.ProfilerActivity.CPU, getattr(torch.profiler.ProfilerActivity, device.upper())}
    spent = dict.fromkeys([*PARTS, "other"], 0.0)
    with torch.profiler.profile(activities=activities) as profiler:
        started = time.perf_counter()
        for _ in range(repeats):
            step(batch)
        if device == "cuda":
            torch.cuda.synchronize()
        total = (time.perf_counter() - started) * 1000 / repeats
    for event in profiler.events():
        names: list[str] = []
        here = event
        while here is not None:
            names.insert(0, here.name)
            here = here.cpu_parent
        part = next((p for name in names for p, words in PARTS.items() if any(word in name for word in words)), None)
        if part is not None:
            spent[part] += getattr(event, f"self_{device}_time_total", 0.0) / 1000 / repeats
    spent["other"] = max(0.0, total - sum(spent.values()))
    return {part: round(value, 2) for part, value in spent.items()}


class LinearLayers(torch.nn.Module):
    """An encoder's linear layers alone, on a batch's real tokens: what its matrix products themselves take."""

    def __init__(self, size: str, most_tokens: int) -> None:
        super().__init__()
        width, inner = SIZES[size]["hidden_size"], SIZES[size]["intermediate_size"]
        shapes = (*[(width, width)] * 4, (width, inner), (inner, width))
        layers = range(SIZES[size]["num_hidden_layers"])
        self.layers = torch.nn.ModuleList([torch.nn.Linear(*shape) for _ in layers for shape in shapes])
        self.inputs = torch.nn.ParameterDict({str(n): torch.randn(most_tokens, n) for n in (width, inner)})

    def forward(self, **batch: Tensor) -> Any:
        """Each layer once; a loss that reaches all of them and their inputs."""
        tokens = int(batch["attention_mask"].sum())
        inputs = {n: rows[:tokens].detach().requires_grad_(self.training) for n, rows in self.inputs.items()}
        outs = [apply_linear(layer, inputs[str(layer.in_features)]) for layer in self.layers]
        return SimpleNamespace(loss=sum(out[0, 0] for out in outs))


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What the numbers depend on: processor, threads, versions."""
    found: dict[str, Any] = {
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
        found["load_before"] = round(os.getloadavg()[0], 1)
    return found


def run_benchmark(
    contenders: Iterable[str] = ("bert", "bert:equal_dropout", "none", "rope", "alibi", "t5"),
    *,
    sizes: Iterable[str] = ("minilm",),
    works: Iterable[str] = ("sst2", "8x128"),
    modes: Iterable[str] = ("inference", "training"),
    dtype: str = "float32",
    reference_dtype: str = "float32",
    rounds: int = 8,
    device: str | None = None,
    profile: bool = False,
    report: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], Any] = lambda found: None,
) -> dict[str, Any]:
    """Measures every contender on every size, work and mode.

    Args:
        contenders: schemes, and names of `PEERS`. Ratios are to the first one, and of ours to `none` where it is there.
        sizes, works, modes: see `SIZES`, `make_batches`, `MODES`.
        dtype: `float32`, `bfloat16` or `float16`, of all but the first contender: of the weights in inference, of
            autocast in training.
        reference_dtype: of the first.
        rounds: turns that count.
        device: `cpu`, `cuda`, ... None: a GPU if there is one.
        profile: say also where the time goes.
        report: called with a line per measurement, and one per contender that is left out, since it needs a package
            that isn't installed.
        save: called with what is there after each size, work and mode, so that what fails later loses nothing.

    Returns:
        `machine`, `settings` and `rows`; a row has `size`, `work`, `mode`, `contender`, `dtype`, `milliseconds`
        (median), `quartiles`, `ratio` (times as fast as the first), `cost` (times the time of `none`),
        `tokens_per_second` (real ones), `peak_mb`, `linear_share` (time of the linear layers alone, on the real tokens,
        over its own: the limit is 1), and `parts` if asked (see `profile_parts`).

    Raises:
        UserError: a name or the device is unknown, or there is nothing to measure.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    settings: dict[str, Any] = {"contenders": list(contenders), "sizes": list(sizes), "works": list(works)}
    settings |= {"modes": list(modes), "dtype": dtype, "reference_dtype": reference_dtype, "rounds": rounds}
    settings["device"] = device
    _check(settings)
    names = settings["contenders"] = _available(settings["contenders"], settings["sizes"], report)
    found: dict[str, Any] = {"machine": machine(device), "settings": settings, "rows": []}
    dtypes = {name: getattr(torch, reference_dtype if name == names[0] else dtype) for name in names}
    for size, work in itertools.product(settings["sizes"], settings["works"]):
        batches = make_batches(work, min(rounds, 8), device)
        longest = max(512, *(batch["input_ids"].shape[1] for batch in batches))
        for mode in settings["modes"]:
            steps = {n: make_step(build_model(n, size, longest, device), mode, dtypes[n]) for n in names}
            most = max(int(batch["attention_mask"].sum()) for batch in batches)
            products = {each: LinearLayers(size, most).to(device, each) for each in set(dtypes.values())}
            limits = {str(each): make_step(products[each], mode, each) for each in products}
            seconds = take_turns({**steps, **limits}, batches, rounds)
            for name in names:
                row = {
                    "size": size,
                    "work": work,
                    "mode": mode,
                    "contender": name,
                    "dtype": str(dtypes[name]).removeprefix("torch."),
                    **_timings(seconds, name),
                    "tokens_per_second": _throughput(seconds[name], batches),
                    "linear_share": round(ratio(seconds[str(dtypes[name])], seconds[name]), 3),
                    "peak_mb": _rounded(peak_memory(steps[name], batches[0])),
                }
                if profile:
                    row["parts"] = profile_parts(steps[name], batches[0])
                found["rows"].append(row)
                report(
                    f"{size} {work} {mode} {name}: {row['milliseconds']} ms, {row['ratio']} x {names[0]}, "
                    f"{row['linear_share']:.0%} of it linear layers"
                )
            save(found)
    return found


def _check(settings: dict[str, Any]) -> None:
    """Refuses what can't be measured, before anything is."""
    kind = settings["device"].split(":")[0]
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        here = "cpu, cuda" if torch.cuda.is_available() else "cpu: PyTorch finds no GPU"
        raise UserError(f"device={settings['device']!r} can't be used. Here it is {here}.")
    lists = {name: settings[name] for name in ("contenders", "sizes", "works", "modes")}
    if not all(lists.values()) or settings["rounds"] < 1:
        raise UserError(f"{lists}, rounds={settings['rounds']!r}: give at least one of each.")
    for mode in settings["modes"]:
        make_step(torch.nn.Linear(1, 1), mode)
    for work in settings["works"]:
        make_batches(work, 1)
    for field in ("dtype", "reference_dtype"):
        if settings[field] not in ("float32", "bfloat16", "float16"):
            raise UserError(f"{field}={settings[field]!r} is unknown. Choose float32, bfloat16 or float16.")


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


def _throughput(seconds: list[float], batches: list[dict[str, Tensor]]) -> int:
    """Real tokens per second: the median over the turns."""
    turns = ((batches[turn % len(batches)], taken) for turn, taken in enumerate(seconds))
    return round(statistics.median(int(batch["attention_mask"].sum()) / taken for batch, taken in turns))


def _available(names: list[str], sizes: list[str], report: Callable[[str], None]) -> list[str]:
    """The contenders that can be built here."""
    left = []
    for name in names:
        try:
            with torch.device("meta"):
                for size in sizes:
                    build_model(name, size, device="meta")
            left.append(name)
        except ImportError as error:
            if name == names[0]:
                raise UserError(f"The reference {name!r} can't be built: {error}") from error
            report(f"{name} is left out: {str(error).splitlines()[0]}")
    return left


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


_IMPORTS = {
    "import torch, transformers": "import torch, transformers",
    "and its BERT": "import torch, transformers; transformers.BertForSequenceClassification",
    "and hf_posenc": "import torch, transformers, hf_posenc; hf_posenc.PosEncForSequenceClassification",
}
_LOAD = """
import sys, time
sys.modules["hf_posenc"] = None  # a stranger doesn't have it: the code in the checkpoint runs
import torch
from transformers import AutoModelForSequenceClassification
started = time.perf_counter()
AutoModelForSequenceClassification.from_pretrained(sys.argv[1], trust_remote_code=True)
print(time.perf_counter() - started)
"""


def measure_startup(size: str = "minilm", rounds: int = 7) -> dict[str, Any]:
    """What a process pays before its first batch: imports, and loading a checkpoint; medians over fresh processes.

    Args:
        size: of the checkpoints, BERT's and ours; see `SIZES`. Ours is loaded with its remote code, without hf_posenc.
        rounds: turns.

    Returns:
        `machine` and `seconds`: of each import in a process of its own, and of `from_pretrained` alone (`load BERT`,
        `load ours`).
    """
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HF_MODULES_CACHE": f"{folder}/modules", "HF_HUB_OFFLINE": "1"}
        environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        for name in ("bert", "rope"):
            build_model(name, size).save_pretrained(f"{folder}/{name}")  # type: ignore[operator]

        def run(*words: str) -> tuple[float, str]:
            started = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", *words], env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"A process that only imports or loads failed: {done.stderr[-2000:]}")
            return time.perf_counter() - started, done.stdout

        for turn in range(-1, rounds):  # the first turn warms the disk up, and copies the remote code
            for name, code in _IMPORTS.items():
                taken = run(code)[0]
                if turn >= 0:
                    seconds.setdefault(name, []).append(taken)
            for name, shown in (("bert", "load BERT"), ("rope", "load ours")):
                taken = float(run(_LOAD, f"{folder}/{name}")[1])
                if turn >= 0:
                    seconds.setdefault(shown, []).append(taken)
    return {
        "machine": machine(),
        "settings": {"size": size, "rounds": rounds},
        "seconds": {name: round(statistics.median(taken), 3) for name, taken in seconds.items()},
    }


def startup_table(found: dict[str, Any]) -> str:
    """The results of `measure_startup` as a table."""
    return markdown_table(("", "seconds"), [(name, f"{taken:.2f}") for name, taken in found["seconds"].items()])


def speed_table(found: dict[str, Any]) -> str:
    """The results of `run_benchmark` as a table, and below it `profile_table` where parts were profiled."""
    first = found["settings"]["contenders"][0]
    head = ["size", "batch", "mode", "encoder", "ms", f"times as fast as {first}", "time of `none` x", "real tokens/s"]
    head += ["peak MB", "share of the linear layers"]
    rows = []
    for row in found["rows"]:
        cost = "" if row["cost"] is None else f"{row['cost']:.2f}"
        name = row["contender"] + ("" if row["dtype"] == "float32" else f" ({row['dtype']})")
        numbers = [f"{row['milliseconds']:.0f}", f"{row['ratio']:.2f}", cost, f"{row['tokens_per_second']:,}"]
        numbers += ["" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"]
        numbers += [f"{row['linear_share']:.0%}" if "linear_share" in row else ""]
        rows.append([row["size"], row["work"], row["mode"], name, *numbers])
    text = markdown_table(head, rows, align="llllrrrrrr")
    return f"{text}\n\n{profile_table(found)}" if any("parts" in row for row in found["rows"]) else text


def profile_table(found: dict[str, Any]) -> str:
    """Where the time goes, in percent: a row for each size, work, mode and contender that was profiled."""
    rows = [row for row in found["rows"] if "parts" in row]
    parts = [part for part in (*PARTS, "other") if any(row["parts"][part] for row in rows)]
    shares = []
    for row in rows:
        total = sum(row["parts"].values())
        percent = (f"{row['parts'][part] / total:.0%}" for part in parts)
        shares.append([f"{row['size']} {row['work']}", row["mode"], f"`{row['contender']}`", *percent])
    return markdown_table(["batch", "mode", "encoder", *parts], shares)


def plot_results(found: dict[str, Any]) -> Any:
    """A matplotlib figure: times as fast as the first contender, a panel for each size, work and mode."""
    from matplotlib.figure import Figure

    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        groups.setdefault((row["size"], row["work"], row["mode"]), []).append(row)
    figure = Figure(figsize=(7, (0.3 * len(found["settings"]["contenders"]) + 0.8) * len(groups)), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups.items(), strict=True):
        bars = axes.barh([row["contender"] for row in rows], [row["ratio"] for row in rows], color="#4477aa")
        axes.bar_label(bars, fmt="%.2f", padding=2)
        axes.margins(x=0.1)  # room for the labels
        axes.axvline(1, color="black", linewidth=0.8)
        axes.invert_yaxis()
        axes.set_title(" ".join(title), fontsize="medium")
        axes.set_xlabel(f"times as fast as {rows[0]['contender']}")
    return figure


def write_results(found: dict[str, Any], path: str | Path) -> list[Path]:
    """Writes PATH (.json), and beside it the table (.md) and, where matplotlib is installed, the plot (.png)."""
    path = Path(path)
    if path.suffix != ".json":
        raise UserError(f"{str(path)!r} doesn't end in .json. The table and the plot go beside it.")
    written = [path, path.with_suffix(".md")]
    write_bytes(path, (json.dumps(found, indent=1) + "\n").encode())
    if "seconds" in found:
        write_bytes(written[1], (startup_table(found) + "\n").encode())
        return written
    write_bytes(written[1], (speed_table(found) + "\n").encode())
    try:
        save_figure(plot_results(found), path.with_suffix(".png"))
        written.append(path.with_suffix(".png"))
    except ImportError:
        pass
    return written
