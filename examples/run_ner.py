#!/usr/bin/env python
"""Trains a token classifier with the stock Trainer: a label for each word, such as the entity that it belongs to.

From a checkpoint that `hf-posenc convert` or examples/run_mlm.py wrote:
    python examples/run_ner.py --model runs/mlm-rope --train_file mine.jsonl --output_dir runs/ner
A line of the file is {"tokens": ["Ada", "sang"], "labels": ["B-PER", "O"]}; the second key may be ner_tags. Then:
    pipeline("token-classification", "runs/ner", trust_remote_code=True, aggregation_strategy="first")("Ada sang.")
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise

from datasets import ClassLabel, load_dataset
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_posenc import PosEncConfig, scale_position_learning_rates


@dataclass
class Arguments:
    """The options besides all of transformers' TrainingArguments; --help lists them."""

    model: str = field(metadata={"help": "The checkpoint to start from: a folder or Hub name."})
    train_file: str | None = field(default=None, metadata={"help": "Labelled words: .jsonl."})
    validation_file: str | None = field(default=None, metadata={"help": "Held-out rows. Default: a tenth."})
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the Hub instead of files."})


def read(args):
    """The rows, train and validation, and the names of the labels by what their column holds."""
    files = {"train": args.train_file} | ({"validation": args.validation_file} if args.validation_file else {})
    data = load_dataset(args.dataset_name) if args.dataset_name else load_dataset("json", data_files=files)
    if "validation" not in data:
        data["train"], data["validation"] = data["train"].train_test_split(test_size=0.1, seed=0).values()
    if "ner_tags" in data["train"].features:
        data = data.rename_column("ner_tags", "labels")
    kind = data["train"].features["labels"].feature
    held = {label: label for rows in data.values() for labels in rows["labels"] for label in labels}
    names = dict(enumerate(kind.names)) if isinstance(kind, ClassLabel) else dict(sorted(held.items()))
    scored = r"O|[BI](-.+)?|(?!(?i:[bieslu][-_].*|.+-[bi]|[o_-])$).+"  # of spans, or of words
    if odd := [name for name in names.values() if not isinstance(name, str) or not re.fullmatch(scored, name)]:
        raise SystemExit(f"The label {odd[0]!r} can't be scored. Give B-PER, I-PER and O, or names of words, as NOUN.")
    return data, names


def entities(labels):
    """The spans of B-, I- and O labels, as conlleval counts them, others of one word: kind, first, after the last."""
    found = set()
    labels = [f"{label}-" if label in ("B", "I") else label for label in labels]
    labels = [*(f"B-{label}" if label[1:2] != "-" and label not in ("", "O") else label for label in labels), "O"]
    for start, label in enumerate(labels):
        kind, before = label[2:], labels[start - 1] if start else "O"
        if label[:2] == "B-" or (label[:2] == "I-" and (before in ("", "O") or before[2:] != kind)):
            found.add((kind, start, next(n for n in range(start + 1, len(labels)) if labels[n] != f"I-{kind}")))
    return found


def scores(names, rows, prediction):
    """Precision, recall and F1 of whole entities, and the accuracy of words; what wasn't read is missed."""
    right, answers, correct = set(), set(), []
    for row, (labels, read) in enumerate(zip(rows["whole"], rows["read"], strict=True)):
        expected, answered = [names[number] for number in labels], [""] * len(labels)
        for word, number in zip(read, prediction.predictions[row][prediction.label_ids[row] != -100], strict=True):
            answered[word] = names[number]
        right |= {(row, *span) for span in entities(expected)}
        answers |= {(row, *span) for span in entities(answered)}
        correct += [label == answer for label, answer in zip(expected, answered, strict=True)]
    both, total = len(right & answers), len(right) + len(answers)
    spans = {"precision": both / max(len(answers), 1), "recall": both / max(len(right), 1)}
    return {"accuracy": sum(correct) / max(len(correct), 1), **spans, "f1": 2 * both / max(total, 1)}


def main():
    parser = HfArgumentParser((Arguments, TrainingArguments), description=__doc__)
    parser.set_defaults(num_train_epochs=3, per_device_train_batch_size=16, learning_rate=5e-5, warmup_steps=0.1)
    parser.set_defaults(eval_strategy="epoch", save_strategy="epoch", logging_strategy="epoch", report_to="none")
    parser.set_defaults(load_best_model_at_end=True, metric_for_best_model="f1", save_total_limit=1)
    args, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)
    data, held = read(args)
    tokenizer = AutoTokenizer.from_pretrained(args.model, add_prefix_space=True)  # so that byte-level ones take words
    known = PosEncConfig.get_config_dict(args.model)[0].get("label2id", {})
    names = sorted(held.values(), key=lambda name: known.get(name, len(known)))  # as the head has them
    head = {"id2label": dict(enumerate(names)), "label2id": {name: names.index(name) for name in names}}
    head |= {"attention_probs_dropout_prob": 0.0}  # S x S numbers
    model = AutoModelForTokenClassification.from_pretrained(args.model, ignore_mismatched_sizes=True, **head)
    (getattr(model.config, "task_specific_params", None) or {}).pop("hf_posenc", None)  # of an earlier training

    def tokenize(batch):
        encoded, aligned, read = tokenizer(batch["tokens"], is_split_into_words=True, truncation=True), [], []
        for row, labels in enumerate(whole := [[names.index(held[n]) for n in labels] for labels in batch["labels"]]):
            # The first piece of a word has its label; others, and special tokens, have -100, which isn't counted.
            pieces = list(pairwise([None, *encoded.word_ids(row)]))
            aligned.append([-100 if word in (None, last) else labels[word] for last, word in pieces])
            read.append([word for last, word in pieces if word not in (None, last)])
        return {**encoded, "labels": aligned, "whole": whole, "read": read}

    data = data.map(tokenize, batched=True, remove_columns=data["train"].column_names)
    cut = {split: sum(map(len, rows["whole"])) - sum(map(len, rows["read"])) for split, rows in data.items()}
    print(f"Words that are cut off, and count as missed: {cut}")
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        compute_metrics=lambda prediction: scores(names, data["validation"], prediction),
    )
    scale_position_learning_rates(trainer.create_optimizer(), model)  # biases on logits need more than the rest
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    print(trainer.evaluate())
    trainer.save_model()


if __name__ == "__main__":
    main()
