#!/usr/bin/env python
"""A scheme of your own, from its file to a checkpoint that strangers load.

    python examples/own_scheme/run.py --output runs/recency

registers `Recency` from recency.py, runs the checks that the package's own schemes pass, trains a tiny classifier on
word order, and loads the checkpoint as someone would who has neither hf_posenc nor recency.py. The same training from
the command line:

    hf-posenc train --scheme-file examples/own_scheme/recency.py --scheme recency --data blimp_order \
        -o runs/recency
"""

import argparse
import subprocess
import sys

from recency import Recency

import hf_posenc
from hf_posenc.finetuning.train import fine_tune
from hf_posenc.options import Options

STRANGER = """
import sys
sys.modules["hf_posenc"] = None  # as if it weren't installed
from transformers import pipeline
classify = pipeline("text-classification", sys.argv[1], trust_remote_code=True)
print(type(classify.model.model.position).__name__, classify("who did the dog chase?"))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="runs/recency")
    parser.add_argument("--max-steps", type=int, default=100)
    options = parser.parse_args()

    hf_posenc.register_scheme(Recency, "recency")
    report = hf_posenc.check_scheme("recency")
    print(report)
    report.raise_on_failure()

    result = fine_tune(
        Options(data="blimp_order", scheme="recency+rope", output=options.output, max_steps=options.max_steps)
    )
    print({name: round(value, 3) for name, value in result.report.metrics.items()})
    subprocess.run([sys.executable, "-c", STRANGER, options.output], check=True)


if __name__ == "__main__":
    main()
