"""The data of a task: the rows that a run trains on, and the parts on which the trained model is tested."""

import hashlib
import json
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from sklearn.metrics import accuracy_score, matthews_corrcoef
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..data.columns import find_columns
from ..data.labels import is_missing
from ..data.preparing import Known, choose_texts, encode_texts, labels_of, marks_of, prepare, texts_of
from ..data.reading import as_table, counted, read_file
from ..data.sources import read
from ..data.tokenizer import SPECIAL_TOKENS
from ..errors import UserError
from ..options import Options
from .plan import CONTROL, Plan, PlannedRun, Task, resolve_data
from .probes import PROBES, SHORTEST, VOCABULARY, make_halves, make_probes

logger = logging.getLogger(__name__)

TEST_SEED = 2**31
"""Generated test examples are the same for all seeds of a plan, and none of its training examples' seeds is this."""
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

    def score(self, metric: str, answers: np.ndarray) -> dict[str, Any]:
        """A row of the results, of the numbers of the labels that were answered."""
        value = (accuracy_score if metric == "accuracy" else matthews_corrcoef)(self.dataset["labels"], answers)
        return {
            "part": self.name,
            "length": self.length,
            "metric": metric,
            "score": float(value),
            "examples": len(self.dataset),
        }


def training_rows(plan: Plan, run: PlannedRun) -> Dataset:
    """The rows that a run trains on; the option `max_rows` takes the first of them.

    Raises:
        UserError: the data can't be read or generated.
    """
    if not run.task.is_generated:
        return load_task(plan, run.task, trial=run.factor is not None)["train"]
    shortest = max(8 if run.task.data == CONTROL else SHORTEST, plan.train_length // 2)
    names, lengths = run.task.probes or tuple(PROBES), (shortest, plan.train_length)
    rows = _generate(run.task, plan.train_examples_of(run.task), lengths, run.seed, names, training=True)
    return as_table(Dataset.from_list(rows), run.task.name)


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


def load_task(plan: Plan, task: Task, *, trial: bool = False) -> dict[str, Dataset]:
    """The rows of `train`, of `test`, which may be the validation split, and of the test files that the task adds.

    Of a file always the same tenth of its texts is the test. A trial of a learning rate is tested on the validation
    split if a test split is reported, else on a tenth of its training rows, on which it doesn't train.

    Raises:
        UserError: they can't be read, or aren't there.
    """
    options = plan.data_options(task)
    splits = read(options)
    if "train" not in splits:
        raise UserError(f"The task {task.name!r} has no training data: {task.data!r} has {', '.join(splits)}.")
    if Path(str(options.data)).is_file():
        splits = _hold_out(splits["train"], options)
    if trial and {"validation", "test"} <= splits.keys():
        return {"train": splits["train"], "test": splits["validation"]}
    if trial:
        rows = splits["train"]
        return _hold_out(rows.select(range(min(options.max_rows or len(rows), len(rows)))), options)
    tested = splits.get("test", splits.get("validation"))
    if tested is None:
        raise UserError(f"The task {task.name!r} has nothing to test on: {task.data!r} has {', '.join(splits)} alone.")
    return {"train": splits["train"], "test": tested, **_extra_tests(task, options)}


def _extra_tests(task: Task, options: Options) -> dict[str, Dataset]:
    tests: dict[str, Dataset] = {}
    for file in task.extra_tests:
        path = Path(resolve_data(task.data)) / file
        if Path(file).name != file or not path.is_file():  # a plan may be a stranger's
            raise UserError(f"The task {task.name!r} names {file!r}, which is no file in {str(path.parent)!r}.")
        part = path.name.split(".")[0]
        if part in ("train", "validation", "test", *tests):
            raise UserError(f"The task {task.name!r} names {file!r}: there is a part {part!r} already.")
        tests[part] = read_file(str(path), options)
    return tests


def _hold_out(rows: Dataset, options: Options) -> dict[str, Dataset]:
    """The rows without a share of the texts, and those of this share; incomplete ones are no texts to choose from."""
    columns, description = find_columns(rows, options), rows.info.description
    if options.skip_missing:
        cells = zip(*columns.texts(rows), rows[columns.label], strict=True)
        whole = rows.select([row for row, parts in enumerate(cells) if not any(map(is_missing, parts))])
        description += f", {len(rows) - len(whole):,} left out" if len(whole) < len(rows) else ""
        rows = whole
    marks = marks_of(*columns.texts(rows))
    held = choose_texts(marks, list(map(str, rows[columns.label])), _TEST_SHARE)
    parts = {
        "train": rows.select([row for row, mark in enumerate(marks) if mark not in held]),
        "test": rows.select([row for row, mark in enumerate(marks) if mark in held]),
    }
    for part in parts.values():
        part.info.description = f"{counted(len(part), 'row')} of {description}"
    return parts


@dataclass(frozen=True)
class CheckedData:
    """Summary of a task's data as they were read.

    Attributes:
        digest: a hash of its rows, by which runs on changed data are told; None: it is generated.
        line: columns, labels and sizes, in words.
    """

    digest: str | None
    line: str


def check_data(plan: Plan, task: Task) -> CheckedData:
    """Reads a task's data, so that faults show before any training.

    Raises:
        UserError: there is no such data, or it can't be compared on.
    """
    if task.is_generated:
        return CheckedData(None, f"{task.name}: generated, {plan.train_examples_of(task):,} examples to train on.")
    prepared = prepare(load_task(plan, task), plan.data_options(task))
    if (kind := prepared.labels.problem_type) != "single_label_classification":
        what = f"The task {task.name!r} is {kind.replace('_', ' ')}, which has no {task.metric}"
        raise UserError(f"{what}. Compare on data with one label per text: a word, or a whole number.")
    if "test" not in prepared.splits:
        raise UserError(f"The task {task.name!r}: its data for 'test' has no labels. Give a test split that has.")
    for concern in prepared.summary.doubts:
        logger.warning(f"The task {task.name!r}: {concern}")
    rows = {name: [*texts_of(part), labels_of(part)] for name, part in prepared.splits.items()}
    digest = hashlib.sha256(json.dumps([prepared.labels.names, rows]).encode()).hexdigest()[:16]
    return CheckedData(digest, f"{task.name}: {prepared.summary.line}")


def test_parts(
    plan: Plan, task: Task, tokenizer: PreTrainedTokenizerBase, labels: tuple[str, ...], *, trial: bool
) -> Iterator[TestPart]:
    """The parts of a task at every test length, as token ids; the same for all schemes and seeds.

    Args:
        plan, task: what is tested.
        tokenizer: the trained model's.
        labels: its labels, in order.
        trial: the parts on which rates are chosen, at the train length.
    """
    lengths = (plan.train_length,) if trial else plan.lengths

    def encoded(name: str, texts: tuple[list[str], ...], numbers: Any, length: int) -> TestPart:
        ids, _ = encode_texts(texts, tokenizer, length, split=name)
        return TestPart(name, length, ids.add_column("labels", numbers))

    if task.is_generated:
        names = (task.name,) if task.data == CONTROL else task.probes or tuple(PROBES)
        for length, name in product(lengths, names):
            seed = TEST_SEED + (-length if trial else length)
            made = _generate(task, plan.test_examples_of(task), (length, length), seed, [name])
            yield encoded(name, ([row["text"] for row in made],), [labels.index(row["label"]) for row in made], length)
        return
    splits = load_task(plan, task, trial=trial)
    prepared = prepare(splits, plan.data_options(task), Known(label_names=labels))
    parts = {}
    for split in (name for name in splits if name != "train"):
        rows = prepared.splits[split]
        chosen = random.Random(0).sample(range(len(rows)), min(plan.test_examples_of(task) or len(rows), len(rows)))
        parts[task.name if split == "test" else f"{task.name}/{split}"] = rows.select(sorted(chosen))
    if task.lengths == "buckets" and not trial:
        whole = concatenate_datasets([*parts.values()])
        yield from _buckets(encoded(task.name, texts_of(whole), labels_of(whole), lengths[-1]), lengths)
        return
    for name, rows in parts.items():
        for length in lengths:
            part = encoded(name, texts_of(rows), labels_of(rows), length)
            yield part
            if part.longest < length:
                break  # nothing was cut, so that longer ones would be the same


def _buckets(whole: TestPart, lengths: tuple[int, ...]) -> Iterator[TestPart]:
    """Those of about each length; what fills the last length to the brim was longer, and has been cut."""
    sizes = [len(ids) for ids in whole.dataset["input_ids"]]
    for shorter, length in zip((0, *lengths), lengths, strict=False):
        chosen = [i for i, size in enumerate(sizes) if shorter < size <= length and size < lengths[-1]]
        if chosen:
            yield TestPart(whole.name, length, whole.dataset.select(chosen))
