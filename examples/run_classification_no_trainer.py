#!/usr/bin/env python
"""Trains a text classifier as run_classification.py does, in a loop of plain PyTorch with accelerate.

    python examples/run_classification_no_trainer.py --train_file mine.csv --tokenizer FOLDER --learning_rate 1e-3 \
        --output_dir runs/new
    accelerate launch --multi_gpu --num_processes 2 examples/run_classification_no_trainer.py \
        --dataset_name fancyzhx/ag_news --model minilm-rope --mixed_precision bf16 --output_dir runs/tuned
--resume_from_checkpoint runs/new/checkpoint-2 goes on after the second epoch. --help lists all options.
"""

import math
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from datasets import ClassLabel, load_dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, HfArgumentParser
from transformers.optimization import get_linear_schedule_with_warmup

from hf_posenc import PosEncConfig, PosEncForSequenceClassification, scale_position_learning_rates


@dataclass
class Arguments:
    """The options."""

    output_dir: str = field(metadata={"help": "Folder for the model and, in it, a checkpoint-N after each epoch."})
    train_file: str | None = field(default=None, metadata={"help": "Labelled texts: .csv, .jsonl or .parquet."})
    validation_file: str | None = field(default=None, metadata={"help": "Held-out rows. Default: a tenth."})
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the Hub instead of files."})
    text_columns: list[str] = field(default_factory=lambda: ["text"], metadata={"help": "One, or two for pairs."})
    label_column: str = field(default="label", metadata={"help": "A column of words or whole numbers."})
    scheme: str = field(default="rope", metadata={"help": "The positional scheme of a new encoder."})
    size: str = field(default="tiny", metadata={"help": "Its size: tiny, mini, small or base."})
    tokenizer: str | None = field(default=None, metadata={"help": "Its tokenizer; default: that of --model."})
    model: str | None = field(default=None, metadata={"help": "Start from this checkpoint, with its tokenizer."})
    max_length: int = field(default=512, metadata={"help": "Longer texts are cut to this many tokens."})
    num_train_epochs: int = field(default=5, metadata={"help": "Passes over the training rows."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Rows of a batch in each process."})
    gradient_accumulation_steps: int = field(default=1, metadata={"help": "Batches of an optimizer step."})
    learning_rate: float = field(default=5e-5, metadata={"help": "At its peak, after a tenth of the steps."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "Norm to which gradients are clipped."})
    mixed_precision: str | None = field(default=None, metadata={"help": "bf16 or fp16."})
    use_cpu: bool = field(default=False, metadata={"help": "Leave GPUs alone."})
    seed: int = field(default=42, metadata={"help": "Of new weights, the order of rows and dropout."})
    resume_from_checkpoint: str | None = field(default=None, metadata={"help": "Go on from this checkpoint-N."})


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


def make_model(args, tokenizer, numbers):
    """A new classifier, or one that starts from a checkpoint."""
    head = {"id2label": dict(enumerate(numbers)), "label2id": numbers, "problem_type": "single_label_classification"}
    # Dropout on attention keeps S x S numbers a head on a CPU; on a new encoder's states it hides equal words.
    if args.model:
        head |= {"attention_probs_dropout_prob": 0.0, "ignore_mismatched_sizes": True}
        return AutoModelForSequenceClassification.from_pretrained(args.model, **head)
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "hidden_dropout_prob": 0.0}
    sizes |= {"max_position_embeddings": args.max_length, "position_embedding_type": args.scheme}
    return PosEncForSequenceClassification(PosEncConfig.from_size(args.size, **sizes, **head))


@torch.no_grad()
def accuracy(accelerator, model, batches):
    """The share of rows that are answered right, each counted once, whichever process has it."""
    model.eval()
    right = [accelerator.gather_for_metrics(model(**batch).logits.argmax(-1) == batch["labels"]) for batch in batches]
    return torch.cat(right).float().mean().item()


def main():
    (args,) = HfArgumentParser(Arguments, description=__doc__).parse_args_into_dataclasses()
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        mixed_precision=args.mixed_precision,
        cpu=args.use_cpu,
        # The order of an epoch follows from the seed and its number, so that a resumed run has it too.
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    set_seed(args.seed)
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

    def encode(batch):
        if unknown := set(batch[args.label_column]) - names.keys():
            raise ValueError(f"The label {unknown.pop()!r} is none of the training rows: {', '.join(numbers)}.")
        encoded = tokenizer(*(batch[name] for name in args.text_columns), truncation=True)
        return {**encoded, "labels": [numbers[names[label]] for label in batch[args.label_column]]}

    def load(rows, shuffle):
        new = rows.map(encode, batched=True, remove_columns=rows.column_names)
        return DataLoader(new, args.per_device_train_batch_size, shuffle, collate_fn=DataCollatorWithPadding(tokenizer))

    model = make_model(args, tokenizer, numbers)
    (getattr(model.config, "task_specific_params", None) or {}).pop("hf_posenc", None)  # of an earlier training
    optimizer = torch.optim.AdamW(model.parameters(), args.learning_rate, weight_decay=0.0, fused=True)
    scale_position_learning_rates(optimizer, model)  # biases on logits need more than the rest
    loaders = load(train, shuffle=True), load(validation, shuffle=False)
    model, optimizer, batches, held_out = accelerator.prepare(model, optimizer, *loaders)
    steps_per_epoch = math.ceil(len(batches) / args.gradient_accumulation_steps)
    steps = steps_per_epoch * args.num_train_epochs
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(0.1 * steps), steps)
    accelerator.register_for_checkpointing(schedule)
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
    progress = tqdm(total=steps, initial=schedule.last_epoch, disable=not accelerator.is_main_process)
    for epoch in range(schedule.last_epoch // steps_per_epoch, args.num_train_epochs):
        model.train()
        batches.set_epoch(epoch)
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
                progress.update()
        accelerator.print(f"epoch {epoch + 1}: accuracy {accuracy(accelerator, model, held_out):.4f}")
        accelerator.save_state(f"{args.output_dir}/checkpoint-{epoch + 1}")
    weights = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(args.output_dir, state_dict=weights)
        tokenizer.save_pretrained(args.output_dir)
    accelerator.end_training()


if __name__ == "__main__":
    main()
