#!/usr/bin/env python
"""Trains a token classifier with the stock Trainer: a label for each word, such as the entity that it belongs to.

From a checkpoint that `hf-posenc convert` or examples/run_mlm.py wrote:
    python examples/run_ner.py --model runs/mlm-rope --train_file mine.jsonl --output_dir runs/ner

A line of the file is {"tokens": ["Ada", "sang"], "labels": ["B-PER", "O"]}; the second key may be ner_tags. All of
transformers' TrainingArguments are options too; --help lists them. Then:
    pipeline("token-classification", "runs/ner", aggregation_strategy="first")("Ada sang in Paris.")
"""

import sys
from dataclasses import dataclass, field
from itertools import pairwise

from datasets import ClassLabel, List, load_dataset
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_posenc import scale_position_learning_rates


@dataclass
class Arguments:
    """The options besides transformers' own."""

    model: str = field(metadata={"help": "The checkpoint to start from: a folder or Hub name."})
    train_file: str | None = field(default=None, metadata={"help": "Labelled words: .jsonl."})
    validation_file: str | None = field(default=None, metadata={"help": "Held-out rows. Default: a tenth."})
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the Hub instead of files."})


def read(args):
    """The rows, train and validation, with labels as numbers, and the names of the labels, in order."""
    files = {"train": args.train_file} | ({"validation": args.validation_file} if args.validation_file else {})
    data = load_dataset(args.dataset_name) if args.dataset_name else load_dataset("json", data_files=files)
    if "validation" not in data:
        data["train"], data["validation"] = data["train"].train_test_split(test_size=0.1, seed=0).values()
    if "ner_tags" in data["train"].features:
        data = data.rename_column("ner_tags", "labels")
    kind = data["train"].features["labels"].feature
    if not isinstance(kind, ClassLabel):
        kind = ClassLabel(names=sorted({label for labels in data["train"]["labels"] for label in labels}))
        data = data.cast_column("labels", List(kind))
    return data, kind.names


def entities(labels):
    """The spans of B-, I- and O labels, as conlleval counts them: kind, first word, word after the last."""
    found, labels = set(), [*labels, "O"]
    for start, label in enumerate(labels):
        kind, before = label[2:], labels[start - 1] if start else "O"
        if label[:2] == "B-" or (label[:2] == "I-" and before[2:] != kind):
            end = next(place for place in range(start + 1, len(labels)) if labels[place] != f"I-{kind}")
            found.add((kind, start, end))
    return found


def scores(names, rows, prediction):
    """Precision, recall and F1 of whole entities, and the accuracy of words; what the model didn't read is missed."""
    right, answers, words = set(), set(), []
    for row, (labels, read) in enumerate(zip(rows["labels"], rows["read"], strict=True)):
        answered = [""] * len(labels)
        for word, number in zip(read, prediction.predictions[row][prediction.label_ids[row] != -100], strict=True):
            answered[word] = names[number]
        expected = [names[number] for number in labels]
        right |= {(row, *span) for span in entities(expected)}
        answers |= {(row, *span) for span in entities(answered)}
        words += [label == answer for label, answer in zip(expected, answered, strict=True)]
    both = len(right & answers)
    return {
        "accuracy": sum(words) / max(len(words), 1),
        "precision": both / max(len(answers), 1),
        "recall": both / max(len(right), 1),
        "f1": 2 * both / max(len(right) + len(answers), 1),
    }


def say_what_is_cut(split, rows, limit):
    """Prints how many texts are longer than the model reads, and how many words that leaves out."""
    lost = [len(labels) - len(read) for labels, read in zip(rows["labels"], rows["read"], strict=True)]
    if cut := sum(count > 0 for count in lost):
        what = f"{cut} of {len(lost)} {split} texts have more than {limit} tokens, and only so many are read"
        print(f"{what}: {sum(lost)} words are cut off, and count as missed.", file=sys.stderr)


def main():
    parser = HfArgumentParser((Arguments, TrainingArguments), description=__doc__)
    parser.set_defaults(num_train_epochs=3, per_device_train_batch_size=16, learning_rate=5e-5, warmup_steps=0.1)
    parser.set_defaults(eval_strategy="epoch", save_strategy="epoch", logging_strategy="epoch", report_to="none")
    parser.set_defaults(load_best_model_at_end=True, metric_for_best_model="f1", save_total_limit=1)
    args, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)
    data, names = read(args)
    tokenizer = AutoTokenizer.from_pretrained(args.model, add_prefix_space=True)  # so that byte-level ones take words
    ids = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    # No dropout on attention probabilities: a CPU would keep all S x S of them for each head.
    model = AutoModelForTokenClassification.from_pretrained(args.model, attention_probs_dropout_prob=0.0, **ids)

    def tokenize(batch):
        encoded, aligned, read = tokenizer(batch["tokens"], is_split_into_words=True, truncation=True), [], []
        for row, labels in enumerate(batch["labels"]):
            # The first piece of a word has its label; others, and special tokens, have -100, which isn't counted.
            pieces = list(pairwise([None, *encoded.word_ids(row)]))
            aligned.append([-100 if word in (None, last) else labels[word] for last, word in pieces])
            read.append([word for last, word in pieces if word not in (None, last)])
        return {**encoded, "labels": aligned, "read": read}

    whole = {split: list(rows["labels"]) for split, rows in data.items()}
    data = data.map(tokenize, batched=True, remove_columns=data["train"].column_names)
    known = {split: {"labels": whole[split], "read": list(data[split]["read"])} for split in ("train", "validation")}
    for split, rows in known.items():
        say_what_is_cut(split, rows, tokenizer.model_max_length)
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        compute_metrics=lambda prediction: scores(names, known["validation"], prediction),
    )
    scale_position_learning_rates(trainer.create_optimizer(), model)  # biases on logits need more than the rest
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    print(trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
