"""Data: from files, a folder or the Hub to token ids and numbered labels.

`splits` and `reading` load files and data sets, `columns` finds text and label, `labels` the task and the classes.
`rows` chooses rows, `validation_split` sets some aside, `encoding` tokenizes. `source` joins these, with the data
`in_memory` or as a stream (`streaming`, `first_reading`).
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .columns import Columns, find_columns, remember_columns, remembered_columns, require_columns
    from .encoding import encode, texts
    from .labels import Labels, number_labels
    from .options import DataArguments
    from .reading import read_file
    from .rows import blank_rows
    from .splits import example_data, load_splits
    from .tokenizer import load_tokenizer, train_tokenizer

__all__ = [
    "Columns",
    "DataArguments",
    "Labels",
    "blank_rows",
    "encode",
    "example_data",
    "find_columns",
    "load_splits",
    "load_tokenizer",
    "number_labels",
    "read_file",
    "remember_columns",
    "remembered_columns",
    "require_columns",
    "texts",
    "train_tokenizer",
]

__getattr__ = lazy_names(__name__, __file__)
