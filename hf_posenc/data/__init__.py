"""Data: from files, a folder or the Hub to a frozen `PreparedData`.

- `splits` and `reading` read files and data sets, each row once, into a `Table` (`table`). `delimited` has the rules of
  .csv and .tsv, `text_files` of encodings and lines. `inputs` reads for predictions.
- `columns` finds text and label, `labels` the task and the classes.
- `preparing` chooses rows and makes a `PreparedData` (`prepared`); `splitting` sets texts aside, `summary`
  says what was done.
- `encoding` makes token ids, `tokenizer` trains a tokenizer.

Nothing here but `tokenizer` needs PyTorch or transformers, so that a bad file is refused at once.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from .columns import Columns, find_columns, remember_columns, remembered_columns, require_columns
    from .encoding import encode_texts
    from .labels import Labels, encode_labels
    from .options import DataArguments
    from .prepared import PreparedData, Use
    from .preparing import prepare
    from .reading import read_table
    from .splits import example_data, read_splits
    from .table import Table
    from .tokenizer import load_tokenizer, train_tokenizer

__all__ = [
    "Columns",
    "DataArguments",
    "Labels",
    "PreparedData",
    "Table",
    "Use",
    "encode_labels",
    "encode_texts",
    "example_data",
    "find_columns",
    "load_tokenizer",
    "prepare",
    "read_splits",
    "read_table",
    "remember_columns",
    "remembered_columns",
    "require_columns",
    "train_tokenizer",
]

__getattr__ = lazy_names(__name__, __file__)
