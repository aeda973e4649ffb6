#!/usr/bin/env python
"""Trains a masked language model with the stock Trainer, and reports its validation perplexity.

From scratch, on the text that comes with the package:
    python examples/run_mlm.py --dataset_name blimp_order --position_embedding_type rope \
        --do_train --do_eval --num_train_epochs 3 --output_dir runs/mlm-rope

On from a checkpoint, on a text file of your own with one text per line:
    python examples/run_mlm.py --model_name_or_path runs/mlm-rope --train_file mine.txt --do_train --do_eval \
        --output_dir runs/mlm-mine

Perplexity counts each masked token once, and the same validation tokens are masked in every run: compare schemes by it.
All of transformers' TrainingArguments are options too; --help lists them.
"""

from rich import print

from hf_posenc.finetuning import parse_arguments, run_script, train_masked_lm
from hf_posenc.training import MaskedLMTrainingArguments


def main() -> None:
    data, model, training = parse_arguments(description=__doc__, training_class=MaskedLMTrainingArguments)
    result = train_masked_lm(data, model, training)
    if training.process_index == 0:
        for name, value in result.metrics.items():
            print(f"{name:32} {value:.4f}")
        print(f"Results and checkpoint are in {result.output_dir}")


if __name__ == "__main__":
    run_script(main)
