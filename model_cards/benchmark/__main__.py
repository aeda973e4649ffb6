"""Measures speed and memory of schemes against transformers' encoders, in turns on the same batches.

python -m model_cards.benchmark
"""

import argparse

import torch

from hf_posenc.errors import run_script

from .contenders import MODES, PEERS, SIZES, VARIANTS
from .run import Settings, run_benchmark, slug
from .tables import SPEED, rows_table, show


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m model_cards.benchmark", description=__doc__.splitlines()[0])
    names = ", ".join((*PEERS, *(f"NAME:{variant}" for variant in VARIANTS)))
    about = {
        "contenders": f"schemes, and peers or variants ({names}); the first is the reference",
        "sizes": ", ".join(SIZES),
        "works": "sst2, sst2_sorted, proteins, mixed or ROWSxTOKENS",
        "modes": ", ".join(MODES),
    }
    for name, text in about.items():
        parser.add_argument(f"--{name}", type=_words, default=getattr(Settings, name), help=text)
    for name, text in {"dtype": "of all but the first", "reference-dtype": "of the first"}.items():
        parser.add_argument(f"--{name}", choices=("float32", "bfloat16"), default="float32", help=text)
    parser.add_argument("--rounds", type=int, default=Settings.rounds, help="turns of each contender")
    parser.add_argument("--threads", type=int, help="processor threads; default: PyTorch's")
    parser.add_argument("--device", default=Settings.device, help="cpu or cuda; default: a GPU if there is one")
    parser.add_argument("-o", "--output", help="results: .json; {processor} stands for this one's name")
    options = vars(parser.parse_args())
    threads, output = options.pop("threads"), options.pop("output")
    if threads is not None:
        torch.set_num_threads(threads)
    results = run_benchmark(Settings(**options))
    output = output and output.replace("{processor}", slug(results["machine"]["processor"]))
    show(results, [rows_table(results["rows"], SPEED)], output)


if __name__ == "__main__":
    run_script(main)
