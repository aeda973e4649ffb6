#!/usr/bin/env python
"""Trains a masked language model with the stock Trainer, and prints its perplexity on held-out text.

One scheme a run, with the same text, tokenizer and masks for all, so that their perplexities compare:
    for scheme in none learned rope alibi; do
        python examples/run_mlm.py --train_file mine.txt --scheme $scheme --output_dir runs/mlm-$scheme
    done

--model goes on from a checkpoint, such as one that `hf-posenc convert` wrote; give it a lower --learning_rate. Then:
    pipeline("fill-mask", "runs/mlm-rope", trust_remote_code=True)("Paris is the <mask> of France.")
    hf-posenc train --pretrained runs/mlm-rope --data labelled.csv -o runs/classifier
"""

import math
from dataclasses import dataclass, field

import torch
from datasets import load_dataset
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    HfArgumentParser,
    RobertaTokenizer,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_posenc import PosEncConfig, PosEncForMaskedLM, scale_position_learning_rates


@dataclass
class Arguments:
    """The options besides all of transformers' TrainingArguments; --help lists them."""

    train_file: str = field(metadata={"help": "Texts: a .txt with one per line, a .csv or .jsonl."})
    validation_file: str | None = field(default=None, metadata={"help": "Held-out texts. Default: a tenth."})
    text_column: str = field(default="text", metadata={"help": "The column of texts in a .csv or .jsonl."})
    scheme: str = field(default="rope", metadata={"help": "The positional scheme of a new encoder."})
    size: str = field(default="tiny", metadata={"help": "Its size: tiny, mini, small or base."})
    vocab_size: int = field(default=8000, metadata={"help": "Of the tokenizer that is trained on the texts."})
    model: str | None = field(default=None, metadata={"help": "Start from this checkpoint, with its tokenizer."})
    max_length: int = field(default=128, metadata={"help": "Longer texts are cut to this many tokens."})


def read(args):
    """The texts: train and validation."""
    kind = {"txt": "text", "csv": "csv"}.get(args.train_file.rpartition(".")[2], "json")
    files = {"train": args.train_file} | ({"validation": args.validation_file} if args.validation_file else {})
    data = load_dataset(kind, data_files=files)
    data = data.filter(lambda row: row[args.text_column] and row[args.text_column].strip())
    if "validation" not in data:
        data["train"], data["validation"] = data["train"].train_test_split(test_size=0.1, seed=0).values()
    return data


def sum_losses(logits, labels):
    """Of each text the summed loss of its masked tokens, and their number: (B, 2)."""
    losses = cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none")
    return torch.stack([losses.sum(1), (labels != -100).sum(1).float()], 1)


def perplexity(prediction):
    """exp of the mean loss per masked token. The Trainer's eval_loss weighs batches, whatever they hold."""
    loss, count = prediction.predictions.astype(float).sum(0)
    return {"perplexity": math.exp(loss / count)}


def main():
    parser = HfArgumentParser((Arguments, TrainingArguments), description=__doc__)
    parser.set_defaults(num_train_epochs=10, per_device_train_batch_size=32, learning_rate=1e-3, warmup_steps=0.1)
    parser.set_defaults(eval_strategy="epoch", logging_strategy="epoch", save_total_limit=1, report_to="none")
    args, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)
    data = read(args)
    if args.model is not None:
        tokenizer = AutoTokenizer.from_pretrained(args.model, model_max_length=args.max_length)
        # No dropout on attention probabilities: a CPU would keep all S x S of them for each head.
        model = AutoModelForMaskedLM.from_pretrained(args.model, attention_probs_dropout_prob=0.0)
        (getattr(model.config, "task_specific_params", None) or {}).pop("hf_posenc", None)  # of an earlier training
    else:
        # Byte-level: no text is unknown, and the same texts give the same tokenizer in every run.
        tokenizer = RobertaTokenizer().train_new_from_iterator(data["train"][args.text_column], args.vocab_size)
        tokenizer.model_max_length = args.max_length
        sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        sizes |= {"max_position_embeddings": args.max_length, "position_embedding_type": args.scheme}
        model = PosEncForMaskedLM(PosEncConfig.from_size(args.size, **sizes))

    def tokenize(batch):
        return tokenizer(batch[args.text_column], truncation=True)

    data = data.map(tokenize, batched=True, remove_columns=data["train"].column_names)
    # Training batches are masked anew each time. The collator's generator is its own, seeded: models of two schemes
    # draw different numbers for their weights and dropout, and still see the same masks.
    mask = DataCollatorForLanguageModeling(tokenizer, seed=training.seed)
    # Held-out texts are masked once, each alone, whatever the run's seed and batch size.
    mask_once = DataCollatorForLanguageModeling(tokenizer, seed=0)
    data["validation"] = data["validation"].map(lambda row: {k: v[0] for k, v in mask_once([row]).items()})
    pad = DataCollatorForTokenClassification(tokenizer)
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        data_collator=lambda rows: pad(rows) if "labels" in rows[0] else mask(rows),
        preprocess_logits_for_metrics=sum_losses,
        compute_metrics=perplexity,
    )
    scale_position_learning_rates(trainer.create_optimizer(), model)  # biases on logits need more than the rest
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    print(f"Perplexity on held-out text: {trainer.evaluate()['eval_perplexity']:.3f}")
    trainer.save_model()


if __name__ == "__main__":
    main()
