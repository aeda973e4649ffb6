#!/usr/bin/env python
"""Trains a text classifier with the stock Trainer.

With the data that comes with the package:
    python examples/run_classification.py --dataset_name blimp_order --position_embedding_type rope \
        --do_train --do_eval --do_predict --num_train_epochs 4 --output_dir runs/order

With your own file, which has columns `text` and `label` (10 % is set aside for validation):
    python examples/run_classification.py --train_file mine.csv --do_train --do_eval --output_dir runs/mine

From pretrained weights, which are converted to the scheme, on a data set of the Hub:
    python examples/run_classification.py --pretrained sentence-transformers/all-MiniLM-L6-v2 \
        --dataset_name stanfordnlp/sst2 \
        --do_train --do_eval --output_dir runs/sst2

All of transformers' TrainingArguments are options too; --help lists them. On two GPUs:
    accelerate launch --multi_gpu --num_processes 2 examples/run_classification.py ...
"""

from rich import print

from hf_posenc.finetuning import fine_tune, parse_arguments, run_script


def main() -> None:
    data, model, training = parse_arguments(description=__doc__)
    result = fine_tune(data, model, training)
    if training.process_index == 0:
        for name, value in result.metrics.items():
            print(f"{name:32} {value:.4f}")
        print(f"Results and checkpoint are in {result.output_dir}")


if __name__ == "__main__":
    run_script(main)
