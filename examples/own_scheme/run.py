#!/usr/bin/env python
"""A scheme of your own, from its file to a checkpoint that strangers load.

    python examples/own_scheme/run.py --output runs/recency

registers `Recency` from recency.py, runs the checks that the package's own schemes pass, fits a small classifier on
word order, and loads the checkpoint as someone would who has neither hf_posenc nor recency.py. A training from the
command line:

    hf-posenc train --scheme-file examples/own_scheme/recency.py --scheme recency --data blimp_order \
        -o runs/recency
"""

import argparse
import subprocess
import sys
from pathlib import Path

import pandas as pd
from recency import Recency

import hf_posenc

SENTENCES = Path(hf_posenc.__file__).parent / "data" / "blimp_order"
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

    train, test = (pd.read_json(SENTENCES / f"{split}.jsonl.gz", lines=True) for split in ("train", "test"))
    fitted = hf_posenc.fit(
        train.text, train.label, scheme="recency+rope", max_steps=options.max_steps, output=options.output
    )
    print(f"accuracy {fitted.score(test.text, test.label):.3f}")
    subprocess.run([sys.executable, "-c", STRANGER, options.output], check=True)


if __name__ == "__main__":
    main()
