"""Measures what a process pays before its first batch: imports, and loading a checkpoint.

python -m model_cards.benchmark.startup
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from hf_posenc.errors import run_script

from .contenders import build_model
from .run import machine
from .tables import output_of, show, startup_table

IMPORTS = {
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


def measure_startup(size: str = "minilm", rounds: int = 8) -> dict[str, Any]:
    """Medians over fresh processes: `seconds` of each import, and of `from_pretrained` alone.

    Both checkpoints have this size (see `SIZES`); ours is loaded with its remote code, without hf_posenc.
    """
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HF_MODULES_CACHE": f"{folder}/modules", "HF_HUB_OFFLINE": "1"}
        environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        for name in ("bert", "rope"):
            build_model(name, size).save_pretrained(f"{folder}/{name}")  # type: ignore[operator]
        commands: dict[str, tuple[str, ...]] = {name: (code,) for name, code in IMPORTS.items()}
        commands |= {"load BERT": (_LOAD, f"{folder}/bert"), "load ours": (_LOAD, f"{folder}/rope")}
        for turn in range(-1, rounds):  # the first turn warms the disk up, and copies the remote code
            for name, words in commands.items():
                started = time.perf_counter()
                command = [sys.executable, "-c", *words]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                taken = float(done.stdout or time.perf_counter() - started)
                if turn >= 0:
                    seconds.setdefault(name, []).append(taken)
    return {
        "machine": machine(),
        "settings": {"size": size, "rounds": rounds},
        "seconds": {name: round(statistics.median(taken), 3) for name, taken in seconds.items()},
    }


def main() -> None:
    """The command."""
    output = output_of(__doc__).parse_args().output
    results = measure_startup()
    show(results, [startup_table(results)], output)


if __name__ == "__main__":
    run_script(main)
