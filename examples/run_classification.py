#!/usr/bin/env python
"""Trains a text classifier with the stock Trainer, from scratch or from a checkpoint that `hf-posenc convert` wrote.

    python examples/run_classification.py --train_file mine.csv --tokenizer FOLDER --learning_rate 1e-3 --output_dir new
    python examples/run_classification.py --dataset_name fancyzhx/ag_news --model minilm-rope --output_dir tuned
All of TrainingArguments are options too (--help), such as --bf16 and --resume_from_checkpoint new/checkpoint-500.
"""

from dataclasses import dataclass, field

import torch
from datasets import ClassLabel, load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments

from hf_posenc import PosEncConfig, PosEncForSequenceClassification, scale_position_learning_rates


@dataclass
class Arguments:
    """The options besides transformers' own."""

    train_file: str | None = field(default=None, metadata={"help": "Labelled texts: .csv, .jsonl or .parquet."})
    validation_file: str | None = field(default=None, metadata={"help": "Held-out rows. Default: a tenth."})
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the Hub instead of files."})
    text_columns: list[str] = field(default_factory=lambda: ["text"], metadata={"help": "One, or two for pairs."})
    label_column: str = field(default="label", metadata={"help": "A column of words or whole numbers."})
    scheme: str = field(default="rope", metadata={"help": "The positional scheme of a new encoder."})
    size: str = field(default="tiny", metadata={"help": "Its size: tiny, mini, small or base."})
    tokenizer: str | None = field(default=None, metadata={"help": "Its tokenizer; default: that of --model."})
    model: str | None = field(default=None, metadata={"help": "Start from this checkpoint, with its tokenizer."})
    lora_rank: int | None = field(default=None, metadata={"help": "Train low-rank updates of --model, by PEFT."})
    max_length: int = field(default=512, metadata={"help": "Longer texts are cut to this many tokens."})


def read(args):
    """The rows to train and to validate on, and the names of the training file's labels, by what their column holds."""
    files = {split: file for split, file in (("train", args.train_file), ("validation", args.validation_file)) if file}
    source = {"csv": "csv", "parquet": "parquet"}.get(str(args.train_file).rpartition(".")[2], "json")
    used = [*args.text_columns, args.label_column]
    as_written = {"converters": dict.fromkeys(used, str), "na_filter": False} if source == "csv" else {}  # 01 stays 01
    data = load_dataset(args.dataset_name or source, data_files=files or None, **as_written).select_columns(used)
    labels = set(data["train"].unique(args.label_column)) - {None, ""}
    labels = sorted(labels, key=lambda label: (str(label).removeprefix("-").isdecimal() and int(label), str(label)))
    kind = data["train"].features[args.label_column]
    names = dict(enumerate(kind.names)) if isinstance(kind, ClassLabel) else {label: str(label) for label in labels}
    if "validation" not in data:
        data["train"], data["validation"] = data["train"].train_test_split(test_size=0.1, seed=0).values()
    return data["train"], data["validation"], names


def main():
    parser = HfArgumentParser((Arguments, TrainingArguments), description=__doc__)
    parser.set_defaults(num_train_epochs=5, per_device_train_batch_size=32, warmup_steps=0.1, save_total_limit=1)
    parser.set_defaults(eval_strategy="epoch", save_strategy="epoch", logging_strategy="epoch", hub_strategy="end")
    args, training = parser.parse_args_into_dataclasses()
    if args.lora_rank and not args.model:
        raise ValueError("--lora_rank trains updates of trained weights. Name a checkpoint with --model.")
    if (named := args.tokenizer or args.model) is None:
        raise SystemExit("Name the tokenizer of a new encoder: --tokenizer google-bert/bert-base-uncased, or a folder.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(named, model_max_length=args.max_length)
    except OSError as error:
        raise SystemExit(f"No tokenizer {named!r} in a folder or, if that can be reached, on the Hub.") from error
    train, validation, names = read(args)
    known = PosEncConfig.get_config_dict(args.model)[0].get("label2id", {}) if args.model else {}
    order = sorted(names.values(), key=lambda name: known.get(name, len(known)))  # as --model has them
    numbers = {name: number for number, name in enumerate(order)}
    head = {"id2label": dict(enumerate(numbers)), "label2id": numbers, "problem_type": "single_label_classification"}
    torch.manual_seed(training.seed)
    # Dropout on attention keeps S x S numbers a head on a CPU; on a new encoder's states it hides equal words.
    if args.model:
        head |= {"attention_probs_dropout_prob": 0.0, "ignore_mismatched_sizes": True}
        model = AutoModelForSequenceClassification.from_pretrained(args.model, **head)
        (getattr(model.config, "task_specific_params", None) or {}).pop("hf_posenc", None)  # of an earlier training
    else:
        sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "hidden_dropout_prob": 0.0}
        sizes |= {"max_position_embeddings": args.max_length, "position_embedding_type": args.scheme}
        model = PosEncForSequenceClassification(PosEncConfig.from_size(args.size, **sizes, **head))
    if args.lora_rank:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig("SEQ_CLS", r=args.lora_rank, lora_alpha=2 * args.lora_rank))

    def encode(batch):
        if unknown := set(batch[args.label_column]) - names.keys():
            raise ValueError(f"The label {unknown.pop()!r} is none of the training rows: {', '.join(numbers)}.")
        encoded = tokenizer(*(batch[name] for name in args.text_columns), truncation=True)
        return {**encoded, "labels": [numbers[names[label]] for label in batch[args.label_column]]}

    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=train.map(encode, batched=True, remove_columns=train.column_names),
        eval_dataset=validation.map(encode, batched=True, remove_columns=validation.column_names),
        processing_class=tokenizer,  # which pads the batches, too
        compute_metrics=lambda answers: {"accuracy": (answers.predictions.argmax(-1) == answers.label_ids).mean()},
    )
    scale_position_learning_rates(trainer.create_optimizer(), model)  # biases on logits need more than the rest
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    if args.lora_rank:
        trainer.model = trainer.model.merge_and_unload()  # into an ordinary checkpoint
    trainer.save_model()  # and pushes it, with --push_to_hub


if __name__ == "__main__":
    main()
