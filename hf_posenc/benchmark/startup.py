"""What a process pays before its first batch."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from .contenders import build_model
from .run import machine

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

        def run(*words: str) -> float:
            """The seconds that the process takes, or that it says."""
            started = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", *words], env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"A process that only imports or loads failed: {done.stderr[-2000:]}")
            return float(done.stdout or time.perf_counter() - started)

        commands: dict[str, tuple[str, ...]] = {name: (code,) for name, code in IMPORTS.items()}
        commands |= {"load BERT": (_LOAD, f"{folder}/bert"), "load ours": (_LOAD, f"{folder}/rope")}
        for turn in range(-1, rounds):  # the first turn warms the disk up, and copies the remote code
            for name, words in commands.items():
                taken = run(*words)
                if turn >= 0:
                    seconds.setdefault(name, []).append(taken)
    return {
        "machine": machine(),
        "settings": {"size": size, "rounds": rounds},
        "seconds": {name: round(statistics.median(taken), 3) for name, taken in seconds.items()},
    }
