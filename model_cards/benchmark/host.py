"""Measures what a training step asks of a GPU's host, without a GPU: of steps so small that nothing else counts.

On short texts a GPU waits for the host, which runs Python and launches operations. Here attention runs as one
operation, on the path through the encoder that a GPU takes; BERT and ours have the same sizes, heads and norms.

python -m model_cards.benchmark.host
"""

import contextlib
import importlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForSequenceClassification

from hf_posenc.errors import run_script
from hf_posenc.kernels import rotation
from hf_posenc.model import attention

from .contenders import encoder_layers, make_step
from .run import machine
from .tables import HOST, JUDGED, output_of, rows_table, show
from .targets import Rows, Target, judge
from .work import Step

CONTENDERS = ("bert", "none", "rope")
COMPILED = ("bert:compiled", "rope:compiled")
"""The same with each layer compiled, for which inductor needs a C++ compiler."""
WORK = "host"
SIZES = {"vocab_size": 500, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
LIKE_BERT = {"norm_position": "post", "classifier_pooling": "cls", "classifier_hidden_act": "tanh"}
LAYERS = 6
LENGTHS = (3, 4, 2, 4)

NOT_LAUNCHED = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "is_same_size")
"""Operations that launch nothing, besides views."""


def ratio_of(name: str) -> Callable[[Rows], float]:
    """How many times as fast as BERT's a contender's step is."""
    return lambda rows: rows[WORK, name]["ratio"]


def ratio_of_compiled(rows: Rows) -> float:
    """How many times as fast as compiled BERT's our compiled step is."""
    bert, rope = (ratio_of(name)(rows) for name in COMPILED)
    return rope / bert


TARGETS = (
    Target("`none` / `bert`, host time of a step", ratio_of("none"), 1.07),
    Target("`rope` / `bert`, host time of a step", ratio_of("rope"), 0.95),
    Target("`rope:compiled` / `bert:compiled`, host time of a step", ratio_of_compiled, 1.0),
    Target("operations of a layer of `rope`", lambda rows: rows[WORK, "rope"]["a_layer"], 78, True),
    Target("operations of `rope` outside of layers", lambda rows: rows[WORK, "rope"]["outside"], 76, True),
)


def build_model(name: str, layers: int = LAYERS) -> torch.nn.Module:
    """A tiny classifier without dropout: BERT, or a scheme of ours with BERT's norms and head; perhaps `:compiled`."""
    encoder, _, compiled = name.partition(":")
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    options: dict[str, Any] = {**SIZES, **dropouts, "num_hidden_layers": layers, "pad_token_id": 0}
    if encoder != "bert":
        options |= {**LIKE_BERT, "position_embedding_type": encoder}
    config = AutoConfig.for_model("bert" if encoder == "bert" else "posenc", **options, attn_implementation="sdpa")
    model = AutoModelForSequenceClassification.from_config(config)
    for layer in encoder_layers(model) if compiled else ():
        layer.compile(dynamic=True)
    return model


def make_batch() -> dict[str, Tensor]:
    """A few words in each text, padded."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(-1)
    return {"input_ids": 7 * mask, "attention_mask": mask.long(), "labels": torch.arange(len(LENGTHS)) % 2}


class _OneOperation(torch.autograd.Function):
    """Stands in for varlen attention, which runs on a GPU alone."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients[0] * 1, gradients[0], gradients[0]


def _is_on() -> bool:
    """Of the one kernel that a GPU has, too; a plain function, as a mock takes longer than what is measured."""
    return True


def _stand_in() -> Any:
    return mock.patch.object(attention, "varlen_attn", lambda q, k, v, *_, **__: _OneOperation.apply(q, k, v))


@contextlib.contextmanager
def path_of_compiled_layers() -> Iterator[None]:
    """The same for layers that are compiled: the compiler takes no tensors that pretend to be a GPU's."""
    with _stand_in(), mock.patch.object(attention, "_runs_varlen", return_value=True):
        yield


@contextlib.contextmanager
def path_of_a_gpu() -> Iterator[None]:
    """Makes the encoder take the path that it takes on an A100 or newer, with tensors of the CPU."""
    on_gpu = mock.patch.object(torch.Tensor, "is_cuda", True)
    new_enough = mock.patch.object(torch.cuda, "get_device_capability", return_value=(8, 0))
    in_half = mock.patch.object(attention, "HALF_FROM", 0)
    turns = mock.patch.object(rotation, "is_enabled", _is_on)
    with _stand_in(), on_gpu, new_enough, in_half, turns:
        yield


def make_host_step(name: str, layers: int = LAYERS) -> Step:
    """A contender's forward and backward in bfloat16 autocast, without the kernels for a CPU."""
    return make_step(build_model(name, layers), "training", torch.bfloat16, with_kernels=False)


class _Operations(TorchDispatchMode):
    """Counts what is dispatched inside."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.removeprefix("aten::")
        self.counts[name] += not (function.is_view or name in NOT_LAUNCHED)
        return function(*args, **(kwargs or {}))


def count_operations(name: str) -> tuple[int, int]:
    """Operations of a step that aren't views: of each layer, and of all outside of layers."""
    totals = []
    for layers in (1, 2):
        step, batch = make_host_step(name, layers), make_batch()
        with path_of_a_gpu():
            step(batch)  # what is computed once per process
            with _Operations() as operations:
                step(batch)
        totals.append(operations.counts.total())
    a_layer = totals[1] - totals[0]
    return a_layer, totals[0] - a_layer


def host_times(rounds: int, contenders: Sequence[str] = CONTENDERS) -> dict[str, float]:
    """Milliseconds of processor time of each contender's fastest step, in turns: others work on the machine too."""
    steps, batch = {name: make_host_step(name) for name in contenders}, make_batch()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 5):
        for name, step in steps.items():
            with path_of_compiled_layers() if name in COMPILED else path_of_a_gpu():
                started = time.process_time()
                step(batch)
                times[name].append((time.process_time() - started) * 1000)
    return {name: min(taken[5:]) for name, taken in times.items()}


def run_host(rounds: int) -> dict[str, Any]:
    """Measures times and counts, and judges `TARGETS`."""
    contenders = CONTENDERS + COMPILED * (shutil.which("g++") is not None)
    milliseconds, rows = host_times(rounds, contenders), []
    for name in contenders:
        row: dict[str, Any] = {"work": WORK, "contender": name, "milliseconds": round(milliseconds[name], 2)}
        row["ratio"] = round(milliseconds[CONTENDERS[0]] / milliseconds[name], 3)
        row["a_layer"], row["outside"] = (None, None) if name in COMPILED else count_operations(name)
        rows.append(row)
    return {"machine": machine(), "rows": rows, "targets": judge(rows, TARGETS)}


def main() -> None:
    """The command."""
    parser = output_of(__doc__)
    parser.add_argument("--rounds", type=int, default=600, help="steps of each contender")
    options = parser.parse_args()
    for module in (
        "peft",
        "transformers.trainer",
    ):  # as in real use: where peft is there, the encoder asks for its hooks
        importlib.import_module(module)
    torch.set_num_threads(1)
    results = run_host(options.rounds)
    show(results, [rows_table(results["rows"], HOST), rows_table(results["targets"], JUDGED)], options.output)


if __name__ == "__main__":
    run_script(main)
