"""The options of the data, as a dataclass; names as in transformers' scripts."""

from dataclasses import dataclass
from functools import partial

from ..errors import UserError
from ..options import COUNT, Range, check_values, one_of, option, whole_number
from .text_files import check_encoding

TASKS = ("classification", "regression")
_data = partial(option, panel="Data")


@dataclass
class DataArguments:
    """Which text, which labels."""

    train_file: str | None = _data(None, "Training data: .csv, .tsv, .json, .jsonl, .txt (all also .gz) or .parquet.")
    validation_file: str | None = _data(None, "Validation data; default: a tenth of the training rows.")
    test_file: str | None = _data(None, "Test data, scored and labelled at the end.", "It may lack labels.")
    dataset_name: str | None = _data(
        None,
        "A Hub data set, a folder of split files, or blimp_order, which comes with the package.",
        "The files are called train, validation and test.",
        is_source=True,
    )
    dataset_config_name: str | None = option(None, "The configuration of a Hub data set.")
    delimiter: str | None = _data(
        None, "Column separator: one character, or tab.", "Default: a comma in a .csv, a tab in a .tsv."
    )
    quoting: str | None = _data(
        None,
        "Quotes in a csv: csv (they enclose cells) or none (plain characters).",
        "Default: csv in a .csv, none in a .tsv.",
        accepts=one_of("csv", "none"),
    )
    encoding: str | None = _data(None, "Encoding of text files: utf-8 (default), latin-1, cp1252, utf-16, ...")
    train_split_name: str | None = option(None, "The training split, if not train.")
    validation_split_name: str | None = option(None, "The validation split, if not validation, valid, val or dev.")
    test_split_name: str | None = option(None, "The test split, if not test.")
    validation_split_percentage: int = option(
        10,
        "Percentage of the training data to validate on, where there is no validation split.",
        accepts=Range("1 to 99", lambda value: 1 <= value <= 99),
    )
    text_column_names: str | None = _data(
        None,
        "Text column; two, with a comma, for pairs.",
        "Default: text or sentence, or a pair such as text and text_pair.",
    )
    text_column_delimiter: str | None = option(
        None, "Join all text columns to one text with this between them; no pairs."
    )
    label_column_name: str | None = _data(
        None,
        "Label column; default: label or labels.",
        "Several columns of 0 and 1, joined by a comma, hold one label each.",
    )
    label_delimiter: str | None = _data(
        None, "Separator of several labels in one cell.", "It makes a multi-label classification."
    )
    label_names: str | None = _data(
        None,
        "What 0, 1, ... in the label column mean, in order: no,yes.",
        "For a trained model whose labels have no names: what its outputs are called in the data.",
    )
    task: str | None = _data(
        None,
        "classification or regression. Default: words and whole numbers are classes, other numbers a regression.",
        "1.0 is whole; more than 50 different whole numbers need it.",
        accepts=one_of(*TASKS),
    )
    skip_missing: bool = _data(
        False, "Leave rows without label or text out.", "Otherwise a row without a label is an error."
    )
    max_seq_length: int | None = _data(
        None,
        "Longer inputs are cut to this many tokens.",
        "Default: the tokenizer's limit, else 512.",
        accepts=whole_number(3),  # [CLS], a token of the text, [SEP]
    )
    max_train_samples: int | None = option(
        None,
        "Use the first n training examples only. Those to validate on are set aside before.",
        accepts=COUNT,
    )
    max_eval_samples: int | None = option(None, "Use the first n validation examples only.", accepts=COUNT)
    max_predict_samples: int | None = option(None, "Use the first n test examples only.", accepts=COUNT)

    @property
    def named_labels(self) -> tuple[str, ...]:
        """What `label_names` lists."""
        return tuple(name.strip() for name in (self.label_names or "").split(",") if name.strip())

    @property
    def most_rows(self) -> dict[str, int | None]:
        """How many rows of each split are used at most."""
        return {"train": self.max_train_samples, "validation": self.max_eval_samples, "test": self.max_predict_samples}

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        check_values(self)
        if self.delimiter in ("tab", "\\t"):
            self.delimiter = "\t"
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise UserError(f"--delimiter {self.delimiter!r} can't separate columns. Give one character, or tab.")
        check_encoding(self.encoding)
        names = self.named_labels
        if self.label_names is not None and (len(names) < 2 or len(set(names)) < len(names)):
            raise UserError(f"--label-names {self.label_names!r} must list each label once, in order: no,yes.")
