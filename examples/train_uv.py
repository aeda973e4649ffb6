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

from datasets import ClassLabel, load_dataset

import hf_posenc

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="A .csv file, or a data set of the Hub with a split `train`.")
    parser.add_argument("--output", required=True, help="The folder of the model.")
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--label-column", default="label")
    parser.add_argument("--pretrained", default=MINILM, help="A checkpoint of the BERT family, or `none`.")
    parser.add_argument("--scheme", help="Default: the checkpoint's own; without one, rope.")
    parser.add_argument("--epochs", type=int, help="Default: it depends on the number of rows.")
    parser.add_argument("--push", metavar="OWNER/NAME", help="Publish the model on the Hub, as a private repository.")
    args = parser.parse_args()

    source = {"path": "csv", "data_files": args.data} if args.data.endswith(".csv") else {"path": args.data}
    rows = load_dataset(**source, split="train")
    texts, labels = rows[args.text_column][:], rows[args.label_column][:]
    if isinstance(kind := rows.features[args.label_column], ClassLabel):
        labels = kind.int2str(labels)
    pretrained = None if args.pretrained == "none" else args.pretrained
    model = hf_posenc.fit(texts, labels, pretrained=pretrained, scheme=args.scheme, epochs=args.epochs, verbose=1)
    model.save(args.output)
    if args.push:
        publish = [sys.executable, "-m", "hf_posenc.cli", "publish", args.output, "--repo-id", args.push, "--private"]
        subprocess.run(publish, check=True)


if __name__ == "__main__":
    main()
