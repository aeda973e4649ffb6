"""The data of a task: the rows that a run trains on, and the parts on which the trained model is tested."""

import hashlib
import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.metrics import matthews_corrcoef
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..data.columns import find_columns
from ..data.preparing import Known, encode_texts, labels_of, prepare, texts_of, whole_pairs
from ..data.sources import read
from ..data.tables import LINE, Table, as_table, counted
from ..data.tokenizer import SPECIAL_TOKENS
from ..errors import UserError
from ..finetuning.start import check_start
from ..options import Options
from .plan import CONTROL, Plan, PlannedRun, Task
from .probes import PROBES, SHORTEST, VOCABULARY, make_halves, make_probes

logger = logging.getLogger(__name__)

TEST_SEED = 2**31
"""Generated test examples are the same for all seeds of a plan, and none of its training examples' seeds is this."""
TIE = 1e-4
"""Logits that differ by less are equal."""
_TEST_SHARE = 0.1
"""Of a file, of which a part is the test."""


@dataclass
class TestPart:
    """One test: some examples at one length."""

    name: str
    length: int
    """Inputs have at most so many tokens."""
    dataset: Dataset
    """Token ids and `labels`."""

    @property
    def longest(self) -> int:
        """Tokens of the longest input."""
        return max(len(ids) for ids in self.dataset["input_ids"])

    def row(self, metric: str, answers: np.ndarray) -> dict[str, Any]:
        """A row of the results, of the numbers of the labels (n,), or of logits (n, C); see `points`."""
        labels = np.asarray(self.dataset["labels"])
        if metric == "accuracy":
            value = (answers == labels if answers.ndim == 1 else points(answers, labels)).mean()
        else:
            value = matthews_corrcoef(labels, answers if answers.ndim == 1 else answers.argmax(-1))
        return {
            "part": self.name,
            "length": self.length,
            "metric": metric,
            "score": float(value),
            "examples": len(self.dataset),
        }


def points(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts each answer (n,), of logits (n, C): labels whose logits are nearer than `TIE` share the point.

    A model without order sees two texts of the same words alike, but for rounding, which would draw lots.
    """
    is_near = logits.max(-1, keepdims=True) - logits < TIE
    return is_near[np.arange(len(labels)), labels] / is_near.sum(-1)


def _generate(
    task: Task, count: int | None, lengths: tuple[int, int], seed: int, probes: Sequence[str], training: bool = False
) -> list[dict[str, Any]]:
    """About so many examples of the control, or of some probes."""
    assert count is not None
    if task.data == CONTROL:
        return make_halves(count, lengths, seed)
    return make_probes(max(1, count // (2 * len(probes))), lengths, seed, probes, training)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the generated tasks: one token per word."""
    numbers = {word: number for number, word in enumerate((*SPECIAL_TOKENS.values(), *VOCABULARY))}
    backend = Tokenizer(models.WordLevel(numbers, unk_token=SPECIAL_TOKENS["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(token, numbers[token]) for token in (cls, sep)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **SPECIAL_TOKENS
    )


def _hold_out(table: Table, options: Options) -> dict[str, Table]:
    """The rows without a share of the texts, and those of this share, as a training sets rows aside to validate on."""
    prepared = prepare({"train": table}, replace(options, validation_share=_TEST_SHARE, max_rows=None))
    row_at = {number: row for row, number in enumerate(table.numbers)}
    rows = {split: [row_at[number] for number in part[LINE][:]] for split, part in prepared.splits.items()}
    left_out = len(table) - sum(map(len, rows.values()))
    summary = f"{table.summary}{f', {left_out:,} left out' if left_out else ''}"
    return {
        split: replace(table.select(rows[name]), summary=f"{counted(len(rows[name]), 'row')} of {summary}")
        for split, name in (("train", "train"), ("test", "validation"))
    }


@dataclass(frozen=True)
class CheckedData:
    """Summary of a task's data as they were read.

    Attributes:
        digest: a hash of its rows, by which runs on changed data are told; None: it is generated.
        line: columns, labels and sizes, in words.
    """

    digest: str | None
    line: str


class TaskData:
    """The data of a task, read once for all runs of a process.

    Args:
        plan, task: what is compared.

    Raises:
        UserError: from each method, where the data can't be read or generated, or aren't there.
    """

    def __init__(self, plan: Plan, task: Task) -> None:
        self.plan = plan
        self.task = task
        self._tested: dict[tuple[tuple[str, ...], bool], _TestRows] = {}

    @cached_property
    def options(self) -> Options:
        """The options of `train` with which it is read."""
        return self.plan.data_options(self.task)

    @cached_property
    def splits(self) -> dict[str, Table]:
        """The rows of `train`, and of `test`, which may be the validation split.

        Of a file always the same tenth of its texts is the test.
        """
        splits = self._read
        tested = splits.get("test", splits.get("validation"))
        if tested is None:
            what = f"{self.task.data!r} has {', '.join(splits)} alone."
            raise UserError(f"The task {self.task.name!r} has nothing to test on: {what}")
        return {"train": splits["train"], "test": tested}

    @cached_property
    def trial_splits(self) -> dict[str, Table]:
        """The rows on which learning rates are tried: trained on, and tested on.

        Tested is on the validation split if a test split is reported, else on a tenth of the training rows.
        """
        rows = self._read["train"]
        if self._validation:
            return {"train": rows, "test": self._validation["validation"]}
        texts = find_columns(rows, self.options).texts(rows)
        return _hold_out(rows.select(whole_pairs(texts, self.options.max_rows or len(rows))), self.options)

    @property
    def _validation(self) -> dict[str, Table]:
        """The split on which rates are tried, and which says when runs end, where one is needed that isn't the test."""
        is_needed = (self.plan.until_flat or self.plan.search) and not self.task.is_generated
        is_there = is_needed and {"validation", "test"} <= self._read.keys()
        return {"validation": self._read["validation"]} if is_there else {}

    @property
    def _known(self) -> Known:
        """The marks of the texts that the plan's checkpoints were trained on."""
        sources = {self.plan.checkpoint(scheme) for scheme in self.plan.schemes} if self.plan.pretrained else set()
        starts = [check_start(replace(self.options, pretrained=source)) for source in sources]
        return Known(trained_on=frozenset().union(*(beginning.known.trained_on for beginning in starts)))

    @cached_property
    def _read(self) -> dict[str, Table]:
        splits = read(self.options)
        if "train" not in splits:
            what = f"{self.task.data!r} has {', '.join(splits)}."
            raise UserError(f"The task {self.task.name!r} has no training data: {what}")
        if Path(str(self.options.data)).is_file():
            return _hold_out(splits["train"], self.options)
        return splits

    def check(self) -> CheckedData:
        """Reads the data, so that faults show before any training."""
        task = self.task
        if task.is_generated:
            count = self.plan.train_examples_of(task)
            return CheckedData(None, f"{task.name}: generated, {count:,} examples to train on.")
        prepared = prepare({**self.splits, **self._validation}, self.options, self._known)
        if (kind := prepared.labels.problem_type) != "single_label_classification":
            what = f"The task {task.name!r} is {kind.replace('_', ' ')}, which isn't compared"
            raise UserError(f"{what}. Take data with one label per text: a word, or a whole number.")
        if "test" not in prepared.splits:
            raise UserError(f"The task {task.name!r}: its data for 'test' has no labels. Give a test split that has.")
        for concern in prepared.summary.doubts:
            logger.warning(f"The task {task.name!r}: {concern}")
        rows = {name: [*texts_of(part), labels_of(part)] for name, part in prepared.splits.items()}
        digest = hashlib.sha256(json.dumps([prepared.labels.names, rows]).encode()).hexdigest()[:16]
        return CheckedData(digest, f"{task.name}: {prepared.summary.line}")

    def training_rows(self, run: PlannedRun) -> Table:
        """The rows that a run trains on; the option `max_rows` takes the first of them."""
        if not self.task.is_generated:
            return (self.splits if run.factor is None else self.trial_splits)["train"]
        shortest = max(8 if self.task.data == CONTROL else SHORTEST, self.plan.train_length // 2)
        names, lengths = self.task.probes or tuple(PROBES), (shortest, self.plan.train_length)
        rows = _generate(self.task, self.plan.train_examples_of(self.task), lengths, run.seed, names, training=True)
        return as_table(Dataset.from_list(rows), self.task.name)

    def training_splits(self, run: PlannedRun) -> dict[str, Table]:
        """The rows that a run trains on, and those that say when it ends where the data have such rows."""
        return {"train": self.training_rows(run), **(self._validation if self.plan.until_flat else {})}

    def test_parts(
        self, tokenizer: PreTrainedTokenizerBase, labels: tuple[str, ...], *, trial: bool = False
    ) -> Iterator[TestPart]:
        """The parts of the task at every test length, as token ids; the same for all schemes and seeds.

        Args:
            tokenizer: the trained model's.
            labels: its labels, in order.
            trial: the parts on which rates are chosen, at the train length.
        """
        lengths = (self.plan.train_length,) if trial else self.plan.lengths
        if self.task.is_generated:
            yield from self._generated_parts(tokenizer, labels, lengths, trial)
            return
        for length in lengths:
            part = _encoded(self._test_rows(labels, trial), tokenizer, length)
            yield part
            if part.longest < length and length >= self.plan.home_length:
                break  # nothing was cut, so that longer ones would be the same

    def _generated_parts(
        self, tokenizer: PreTrainedTokenizerBase, labels: tuple[str, ...], lengths: tuple[int, ...], trial: bool
    ) -> Iterator[TestPart]:
        task, count = self.task, self.plan.test_examples_of(self.task)
        names = (task.name,) if task.data == CONTROL else task.probes or tuple(PROBES)
        for length, name in product(lengths, names):
            seed = TEST_SEED + (-length if trial else length)
            made = _generate(task, count, (length, length), seed, [name])
            numbers = [labels.index(row["label"]) for row in made]
            yield _encoded(_TestRows(name, ([row["text"] for row in made],), numbers), tokenizer, length)

    def _test_rows(self, labels: tuple[str, ...], trial: bool) -> "_TestRows":
        """The texts with the numbers of their labels, of which a plan may take some."""
        if (labels, trial) not in self._tested:
            prepared = prepare(self.trial_splits if trial else self.splits, self.options, Known(label_names=labels))
            rows = prepared.splits["test"]
            if (most := self.plan.test_examples_of(self.task)) is not None:
                rows = rows.select(whole_pairs(texts_of(rows), most, random.Random(0)))
            self._tested[labels, trial] = _TestRows(self.task.name, texts_of(rows), labels_of(rows))
        return self._tested[labels, trial]


@dataclass(frozen=True)
class _TestRows:
    """The rows of a test before they are tokens: the texts, or the first and second ones, and the labels' numbers."""

    name: str
    texts: tuple[list[str], ...]
    labels: Any


def _encoded(rows: _TestRows, tokenizer: PreTrainedTokenizerBase, length: int) -> TestPart:
    """The rows as token ids, at most so many."""
    ids, _ = encode_texts(rows.texts, tokenizer, length, split=rows.name)
    return TestPart(rows.name, length, ids.add_column("labels", rows.labels))
