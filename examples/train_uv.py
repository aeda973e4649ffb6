# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-posenc>=1.0"]
# ///
"""Trains a text classifier with one command, on this machine or on HF Jobs: uv installs what it needs.

Until hf-posenc is released no index has it: build a wheel (python -m build --wheel) and say uv run --find-links dist.

uv run examples/train_uv.py --data mine.csv --output runs/mine
hf jobs uv run --flavor a10g-small --secrets HF_TOKEN examples/train_uv.py \
    --data cornell-movie-review-data/rotten_tomatoes --output mine --push me/mine
"""

import argparse
import subprocess
import sys

import hf_posenc

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="A file, such as a .csv, or a data set of the Hub.")
    parser.add_argument("--output", required=True, help="The folder of the model.")
    parser.add_argument("--text-column", help="Default: text, sentence or a usual pair.")
    parser.add_argument("--label-column", help="Default: label or labels.")
    parser.add_argument("--pretrained", default=MINILM, help="A checkpoint of the BERT family, or `none`.")
    parser.add_argument("--scheme", help="Default: the checkpoint's own; without one, rope.")
    parser.add_argument("--epochs", type=int, help="Default: it depends on the number of rows.")
    parser.add_argument("--push", metavar="OWNER/NAME", help="Publish the model on the Hub, as a private repository.")
    args = parser.parse_args()

    columns = {"text_column": args.text_column, "label_column": args.label_column}
    pretrained = None if args.pretrained == "none" else args.pretrained
    hf_posenc.train(args.data, args.output, pretrained=pretrained, scheme=args.scheme, epochs=args.epochs, **columns)
    if args.push:
        publish = [sys.executable, "-m", "hf_posenc.cli", "publish", args.output, "--repo-id", args.push, "--private"]
        subprocess.run(publish, check=True)


if __name__ == "__main__":
    main()
