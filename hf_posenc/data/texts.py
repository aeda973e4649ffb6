"""Texts without labels: those of a file, a table or a list, and those that come along."""

import logging
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..options import Options, refuse_given
from .columns import find_columns
from .memory import IN_MEMORY, table_in_memory, values_in_memory
from .reading import read_file, refuse_surrogates
from .sources import EXAMPLE_DATA
from .tables import counted

logger = logging.getLogger(__name__)


def own_texts(count: int = 256) -> list[str]:
    """Sentences of the data set in the package, for a measurement where the user gives no text."""
    texts = read_file(EXAMPLE_DATA / "validation.jsonl.gz").cells("text")
    return texts[:: max(1, len(texts) // count)][:count]


def read_training_texts(source: Any, options: Options | None = None) -> list[str]:
    """Texts of a file (see `hf-posenc predict --data`), of a table in memory, or of a list, without empty ones.

    Args:
        source: the file, table or list.
        options: how it is read.

    Raises:
        UserError: there is no such file or column, or no text in it.
    """
    options = options or Options()
    if isinstance(source, (str, Path)):
        table: Any = read_file(source, options)
    else:
        refuse_given(options, ("delimiter", "quoting", "encoding", "format"), "is for files, and these texts are none")
        table = table_in_memory(source)
    if table is not None:
        columns = find_columns(table, options, needs_label=False).texts(table)
        texts = [" ".join(parts) for parts in zip(*columns, strict=True)]
    else:
        texts = values_in_memory(source)
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise UserError(f"{wrong[0]!r} is no text. Give a file, or a list of strings.")
        refuse_surrogates((f"Row {number}", text) for number, text in enumerate(texts))
    written = [text for text in texts if text.strip()]
    if not written:
        raise UserError(f"{str(source)[:80]!r} holds no text. Give a file with one text per line.")
    if empty := len(texts) - len(written):
        name = repr(str(source)) if isinstance(source, (str, Path)) else IN_MEMORY
        logger.warning(f"{name}: {counted(empty, 'empty text')} left out, {counted(len(written), 'text')} used.")
    return written
