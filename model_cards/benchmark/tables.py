"""Results as tables, and the file that holds them."""

import argparse
from collections.abc import Sequence
from typing import Any

from hf_posenc.files import write_json
from hf_posenc.markdown import markdown_table


def output_of(about: str | None) -> argparse.ArgumentParser:
    """A parser with the option that all commands have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="results: .json")
    return parser


def show(results: dict[str, Any], tables: Sequence[str], output: str | None) -> None:
    """Prints the tables, and writes the results."""
    print(*tables, sep="\n\n")
    if output is not None:
        write_json(output, results)


SPEED = (
    *("size", "work", "mode", "contender", "dtype"),
    *("milliseconds", "ratio", "cost", "tokens_per_second", "peak_mb", "linear_share"),
)
"""Columns of what `run_benchmark` measures."""
GPU = ("work", "contender", "milliseconds", "tokens_per_second", "peak_mb")
"""Those that differ on a GPU, where one model trains."""
SERVING = ("work", "contender", "milliseconds", "texts_per_second", "ratio", "accuracy", "agreement")
"""Columns of what `run_serving` measures."""
HOST = ("contender", "milliseconds", "ratio", "a_layer", "outside")
"""Columns of what `run_host` measures: times, and operations."""
JUDGED = ("target", "value", "bound", "outcome")
"""Columns of what `judge` says."""


def rows_table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows of results, as they are."""
    cells = [["" if row[name] is None else row[name] for name in columns] for row in rows]
    return markdown_table([name.replace("_", " ") for name in columns], cells)
