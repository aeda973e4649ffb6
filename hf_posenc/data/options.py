"""The options of the data, as a dataclass; names as in transformers' scripts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..errors import UserError
from .text_files import check_encoding

TASKS = ("classification", "regression", "tokens")


@dataclass(frozen=True)
class Range:
    """The numbers that an option takes."""

    text: str
    holds: Callable[[float], bool]


COUNT = Range("a whole number from 1", lambda value: value >= 1 and value == int(value))


@dataclass
class DataArguments:
    """Which text, which labels."""

    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "A data set of the Hub, a folder that holds train, validation and test files, or blimp_order, "
            "which comes with this package."
        },
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The configuration of a Hub data set."})
    train_file: str | None = field(
        default=None, metadata={"help": "Training data: .csv, .tsv, .json, .jsonl (all also .gz) or .parquet."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "Validation data, in the same form."})
    test_file: str | None = field(default=None, metadata={"help": "Test data, in the same form; may lack labels."})
    delimiter: str | None = field(
        default=None,
        metadata={"help": "Between the columns of a .csv or .tsv: one character, or tab. Default: found in the file."},
    )
    quoting: str | None = field(
        default=None,
        metadata={
            "help": "What quotes in a .csv or .tsv are: csv (they enclose cells) or none (they are letters). Default: "
            "csv in a .csv, and in a .tsv if they balance in every line."
        },
    )
    decimal: str | None = field(
        default=None,
        metadata={"help": "Decimal sign of numbers in a .csv or .tsv: . or , (found, and said, where labels have it)."},
    )
    encoding: str | None = field(
        default=None, metadata={"help": "Of files of text: utf-8 (default), latin-1, cp1252, utf-16, ..."}
    )
    train_split_name: str | None = field(default=None, metadata={"help": "The training split, if not train."})
    validation_split_name: str | None = field(
        default=None, metadata={"help": "The validation split, if not validation, valid, val or dev."}
    )
    test_split_name: str | None = field(default=None, metadata={"help": "The test split, if not test."})
    validation_split_percentage: int = field(
        default=10,
        metadata={"help": "Percentage of the training data to validate on, where there is no validation split."},
    )
    text_column_names: str | None = field(
        default=None,
        metadata={"help": "Column with the text; two, joined by a comma, for sentence pairs. Default: found by name."},
    )
    text_column_delimiter: str | None = field(
        default=None, metadata={"help": "Join all text columns to one text with this between them; no pairs."}
    )
    label_column_name: str | None = field(
        default=None,
        metadata={
            "help": "Column with the label; several columns of 0 and 1, joined by a comma, hold one label each. "
            "Default: label, or the only column that is left."
        },
    )
    label_delimiter: str | None = field(
        default=None,
        metadata={"help": "Several labels in one cell of a csv, with this between them: multi-label classification."},
    )
    task: str | None = field(
        default=None,
        metadata={
            "help": "classification, regression, or tokens: a label for each word of a list. Default: a regression if "
            "the labels are real numbers (few whole ones such as 0.0 and 1.0 are labels), else classification."
        },
    )
    skip_missing: bool = field(
        default=False, metadata={"help": "Leave rows without a label or without text out; otherwise the former end it."}
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Longer inputs are truncated to this many tokens. Default: the tokenizer's limit, else 512."},
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read the training data while training, for data that doesn't fit into memory or on the disk; "
            "needs --max_steps."
        },
    )
    shuffle_buffer_size: int | None = field(
        default=None,
        metadata={
            "help": "With --streaming: draw from this many examples, held in memory. Default: 10000; 1: in order."
        },
    )
    class_names: str | None = field(
        default=None,
        metadata={
            "help": "With --streaming: the labels, joined by a comma. Default: found by reading the data once before "
            "training."
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first n training examples only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use the first n validation examples only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Use the first n test examples only."})

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        for name in ("max_train_samples", "max_eval_samples", "max_predict_samples"):
            value = getattr(self, name)
            if value is not None and not COUNT.holds(value):
                raise UserError(f"--{name} {value} is out of range. Give {COUNT.text}.")
        if self.delimiter in ("tab", "\\t"):
            self.delimiter = "\t"
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise UserError(f"--delimiter {self.delimiter!r} can't separate columns. Give one character, or tab.")
        for name, accepted in (("quoting", ("csv", "none")), ("decimal", (".", ","))):
            if (value := getattr(self, name)) not in (None, *accepted):
                raise UserError(f"--{name} {value!r} is unknown. Choose {' or '.join(accepted)}.")
        check_encoding(self.encoding)
        if self.task not in (None, *TASKS):
            raise UserError(f"--task {self.task!r} is unknown. Choose {', '.join(TASKS[:-1])} or {TASKS[-1]}.")
