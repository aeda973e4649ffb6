"""Token ids of texts, and what becomes of those that are longer than the model reads: they are cut, or read in windows.

A window is as long as the model reads, with the tokenizer's special tokens around its part of the text. The last one
ends with the text, so that none is padded. In a pair the first text stands in every window, and the second is divided.
All windows of a text count alike in its one answer.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import log_expit, log_softmax, logsumexp
from transformers import PreTrainedTokenizerBase

from ..data.tokenizer import cut_rows
from ..errors import UserError, spell
from ..options import COUNT, WINDOWS, check_range, whole_number

Row = Mapping[str, Sequence[int]]
"""A tokenizer's output for one input: `input_ids`, and what else the model takes."""
Part = tuple[Row, bool]
"""A row that the model reads, and whether its text ends with it."""


@dataclass(frozen=True)
class Windows:
    """Windows over texts that are longer than the model reads.

    Attributes:
        answer: `mean`: the mean of the windows' probabilities, in a regression of their numbers; `max`: the largest
            probability of each label, for one label per text divided by their sum.
        stride: how many tokens each window begins after the one before, at most what it holds of the text. None: half
            of that.

    Raises:
        UserError: a value isn't accepted.
    """

    answer: str
    stride: int | None = None

    def __post_init__(self) -> None:
        """Checks each value."""
        check_range("stride", self.stride, COUNT)
        if self.answer not in WINDOWS:
            known = f"is unknown. Choose one of {', '.join(WINDOWS)}."
            raise UserError(known, parameter="windows", value=self.answer)

    @classmethod
    def of(cls, windows: str | None, stride: int | None) -> "Windows | None":
        """Windows by the parameters `windows` and `stride`; None: texts are cut."""
        if windows is not None:
            return cls(windows, stride)
        if stride is not None:
            useless = f"is for {spell('windows')}, which isn't given. Leave it out."
            raise UserError(useless, parameter="stride", value=stride)
        return None

    def check(self, problem_type: str, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Raises a UserError if a model of this problem type, with this tokenizer, can't be asked so."""
        if self.answer == "max" and problem_type == "regression":
            contradiction = f"is for labels, and the model predicts numbers. Give {spell('windows', 'mean')}."
            raise UserError(contradiction, parameter="windows", value="max")
        if tokenizer is not None:
            room = tokenizer.model_max_length - tokenizer.num_special_tokens_to_add()
            check_range("stride", self.stride, whole_number(1, room))

    def combined(self, logits: Sequence[np.ndarray], problem_type: str) -> np.ndarray:
        """Logits (C,) that have the text's probabilities, from those of its windows; a single one keeps its own.

        Softmax and sigmoid of them are the probabilities; nothing is lost to rounding where these are near 0 or 1.
        """
        if len(logits) == 1:
            return logits[0]
        stacked = np.stack(logits).astype(np.float64)
        if problem_type == "regression":
            together = stacked.mean(0)
        elif problem_type == "multi_label_classification":
            odds = logsumexp(log_expit(stacked), axis=0) - logsumexp(log_expit(-stacked), axis=0)
            together = odds if self.answer == "mean" else stacked.max(0)
        else:  # softmax divides by the sum
            shares = log_softmax(stacked, axis=-1)
            together = logsumexp(shares, axis=0) if self.answer == "mean" else shares.max(0)
        return together.astype(np.float32)

    def parts(self, tokenizer: PreTrainedTokenizerBase, row: Row, text: str | tuple[str, ...]) -> Iterator[Part]:
        """Two windows or more of the row of a text or a pair that is too long; of another the row.

        Args:
            tokenizer: the model's.
            row: its output for the text.
            text: one, or a pair.

        Raises:
            UserError: the first text of a pair leaves no room for the second.
        """
        ids = row["input_ids"]
        max_length = tokenizer.model_max_length
        if len(ids) <= max_length:
            yield row, True
            return
        first_text, last_text = (text, text) if isinstance(text, str) else (text[0], text[-1])
        divided = tokenizer(last_text, add_special_tokens=False, verbose=False)["input_ids"]
        size = len(divided)
        room = max_length - (len(ids) - size)
        if room < 1:
            raise UserError(
                f"{first_text[:60]!r}..., of {len(ids):,} tokens, can't be read in windows of {max_length:,}: they "
                f"divide its last text, of {size:,}, and what stands around it leaves no room. Shorten a first text, "
                f"or leave {spell('windows', self.answer)} out."
            )
        before = next(start for start in range(len(ids) - size, -1, -1) if ids[start : start + size] == divided)
        step = min(self.stride or max(1, room // 2), room)
        last = size - room
        for start in (*range(0, last, step), last):
            begin = before + start
            window = {
                name: [*values[:before], *values[begin : begin + room], *values[before + size :]]
                for name, values in row.items()
            }
            yield window, start == last


def rows_of(
    tokenizer: PreTrainedTokenizerBase,
    inputs: Iterable[Any],
    batch_size: int,
    windows: Windows | None,
    long: dict[int, int],
) -> Iterator[Part]:
    """Token ids of texts and pairs, which are read `batch_size` at a time; rows as they are.

    Args:
        tokenizer: its `model_max_length` is what the model reads.
        inputs: texts, tuples of one or two, or rows.
        batch_size: how many are tokenized together.
        windows: None: longer texts are cut.
        long: gets the number, from 0, of each text that is longer, and how many rows are read of it.
    """
    iterator = iter(inputs)
    done = 0
    while group := list(islice(iterator, batch_size)):
        if isinstance(group[0], Mapping):
            yield from ((row, True) for row in group)
            continue
        texts = [text[0] if len(text) == 1 and isinstance(text, tuple) else text for text in group]
        encoded = tokenizer(texts, truncation=windows is None, verbose=False)
        rows = [{name: values[row] for name, values in encoded.items()} for row in range(len(texts))]
        if windows is None:
            long |= {done + row: 1 for row in cut_rows(encoded, tokenizer.model_max_length)}
            yield from ((row, True) for row in rows)
        else:
            for number, (row, text) in enumerate(zip(rows, texts, strict=True), done):
                for count, part in enumerate(windows.parts(tokenizer, row, text), 1):
                    if count > 1:
                        long[number] = count
                    yield part
        done += len(group)


def remarks_on_long(
    long: Collection[int], tokenizer: PreTrainedTokenizerBase, windows: Windows | None
) -> tuple[list[str], list[str]]:
    """Says that texts were longer than the model reads: a note if they were read in windows, a doubt if cut.

    Args:
        long: of each of them the number of its windows; of those that were cut any number.
        tokenizer: has the longest input.
        windows: by which they were read; None: they were cut.
    """
    if not long:
        return [], []
    texts = "1 text has" if len(long) == 1 else f"{len(long):,} texts have"
    more = f"{texts} more than {tokenizer.model_max_length:,} tokens"
    if windows is None:
        return [], [f"{more}, and only so many were read."]
    return [f"{more}: read in {sum(long):,} windows, by the {windows.answer} of their answers."], []
