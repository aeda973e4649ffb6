"""From a task to data: the training options, and the parts on which a trained model is tested."""

import hashlib
import json
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from sklearn.metrics import accuracy_score, matthews_corrcoef
from transformers import PreTrainedTokenizerBase

from hf_posenc.data.columns import find_columns, require_columns
from hf_posenc.data.labels import encode_labels
from hf_posenc.data.preparing import choose_texts, encode_texts, marks_of
from hf_posenc.data.reading import LINE, classes_of, names_of, read_file
from hf_posenc.data.sources import read
from hf_posenc.errors import UserError
from hf_posenc.files import write_text

from .plan import CONTROL, DATA_VARIABLE, Plan, PlannedRun, Task, resolve_data
from .probes import PROBES, SHORTEST, make_halves, make_probes, make_tokenizer

logger = logging.getLogger(__name__)

TEST_SEED = 2**31
"""Generated test examples are the same for all seeds of a plan, and none of its training examples' seeds is this."""
_TEST_SHARE = 0.1
"""Of a file, of which a part is the test."""
_OF_A_FILE = {"delimiter": None, "quoting": None, "encoding": None, "format": None}
"""Options of the user's file, which those that are written from it don't need."""


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


def training_options(plan: Plan, run: PlannedRun, folder: Path) -> dict[str, Any]:
    """The training options that name the data; generated data is written into `folder`.

    Raises:
        UserError: the data can't be generated.
    """
    task = run.task
    if not task.is_generated:
        if run.factor is not None and (files := development_files(plan, task, folder)) is not None:
            return {"data": str(files[0]), **_OF_A_FILE}
        options: dict[str, Any] = {"data": resolve_data(task.data)}
        if Path(options["data"]).is_file():  # without the rows that it is tested on
            options = {"data": str(folder / f"{task.name}-train.jsonl"), **_OF_A_FILE}
            _write_rows(Path(options["data"]), load_task(plan, task)["train"])
        count = plan.train_examples_of(task)
        return options | ({} if count is None else {"max_rows": count})
    path = folder / f"{task.name}-seed{run.seed}.jsonl"
    if not path.exists():
        write_text(path, "".join(f"{json.dumps(row)}\n" for row in _generate(plan, task, run.seed)))
    tokenizer = folder / "tokenizer"
    if not (tokenizer / "tokenizer_config.json").exists():
        make_tokenizer().save_pretrained(str(tokenizer))
    return {"data": str(path), "tokenizer": str(tokenizer)}


def development_files(plan: Plan, task: Task, folder: Path) -> tuple[Path, Path] | None:
    """Training rows and a tenth that is held out of them, to choose on; None: the validation split isn't reported."""
    splits = load_task(plan, task)
    if "validation" in splits and "test" in splits:
        return None
    files = (folder / f"{task.name}-search-train.jsonl", folder / f"{task.name}-search-held-out.jsonl")
    if not all(file.exists() for file in files):
        rows = _first(splits["train"], plan.train_examples_of(task))
        for file, part in zip(files, _without_held_out(plan, task, rows), strict=True):
            _write_rows(file, part)
    return files


def load_task(plan: Plan, task: Task) -> dict[str, Dataset]:
    """The splits of a task's data; of a file the same share of its texts is always the test.

    Raises:
        UserError: it can't be read.
    """
    options = plan.data_options(task)
    splits = read(options)
    if not Path(str(options.data)).is_file():
        return splits
    train, test = _without_held_out(plan, task, splits["train"])
    return {"train": train, "test": test}


def _without_held_out(plan: Plan, task: Task, rows: Dataset) -> tuple[Dataset, Dataset]:
    """The rows without a share of the texts, and those of this share."""
    columns = find_columns(rows, plan.data_options(task))
    marks = marks_of(*columns.texts(rows))
    held = choose_texts(marks, list(map(str, rows[columns.label])), _TEST_SHARE)
    return (
        rows.select([row for row, mark in enumerate(marks) if mark not in held]),
        rows.select([row for row, mark in enumerate(marks) if mark in held]),
    )


def _write_rows(path: Path, rows: Dataset) -> None:
    """Writes rows as JSON, classes as names."""
    lines = []
    classes = {name: names for name in names_of(rows) if (names := classes_of(rows, name)) is not None}
    for row in rows.remove_columns(LINE):
        row |= {name: names[row[name]] for name, names in classes.items() if isinstance(row[name], int)}
        lines.append(f"{json.dumps(row, ensure_ascii=False, default=str)}\n")
    write_text(path, "".join(lines))


def _generate(plan: Plan, task: Task, seed: int) -> Iterator[dict[str, Any]]:
    """The training examples: half as long as the train length, or longer, up to it."""
    count, longest = plan.train_examples_of(task), plan.train_length
    assert count is not None
    if task.data == CONTROL:
        yield from make_halves(count, (max(8, longest // 2), longest), seed)
        return
    names = task.probes or tuple(PROBES)
    pairs = max(1, count // (2 * len(names)))
    yield from make_probes(pairs, (max(SHORTEST, longest // 2), longest), seed, names, training=True)


def check_data(plan: Plan, task: Task) -> str | None:
    """Reads a task's data, so that faults show before any training.

    Returns:
        A hash of its rows, by which runs on changed data are told; None: it is generated.

    Raises:
        UserError: there is no such data, or it can't be compared on.
    """
    if task.is_generated:
        return None
    try:
        splits = load_task(plan, task)
    except UserError as error:
        if Path(resolve_data(task.data)).exists():
            raise
        raise UserError(
            f"{error} The environment variable {DATA_VARIABLE} can name the folder in which {task.data!r} lies."
        ) from error
    if "train" not in splits:
        raise UserError(f"The task {task.name!r} has no training data: {task.data!r} has {', '.join(splits)}.")
    data, tests = plan.data_options(task), _test_splits(task, splits)
    columns = find_columns(splits["train"], data)
    digest = hashlib.sha256()
    trained: set[int] = set()
    for name, rows in {"train": splits["train"], **tests}.items():
        require_columns(rows, columns.text, "--text-column", name)
        require_columns(rows, (columns.label,), "--label-column", name)
        marks = marks_of(*columns.texts(rows))
        if name != "train" and (shared := sum(mark in trained for mark in marks)):
            logger.warning(
                f"The task {task.name!r}: {shared:,} of {len(rows):,} texts of its data for {name!r} stand in its "
                "training data too."
            )
        trained |= set(marks) if name == "train" else set()
        digest.update(json.dumps([name, marks, list(map(str, rows[columns.label]))]).encode())
    for name, rows in tests.items():
        _check_labels(plan, task, splits["train"], name, rows)
    return digest.hexdigest()[:16]


def _check_labels(plan: Plan, task: Task, train: Dataset, name: str, rows: Dataset) -> None:
    """Refuses a test that couldn't be scored, before training."""
    data = plan.data_options(task)
    labels, numbers = encode_labels({"train": train, "test": rows}, find_columns(train, data), data)
    if labels.problem_type != "single_label_classification":
        raise UserError(
            f"The task {task.name!r} is {labels.problem_type.replace('_', ' ')}, which has no {task.metric}. Compare "
            "on data with one label per text; numbers that are classes have to be whole ones, or words."
        )
    if len(labels.names) < 2:
        raise UserError(f"The task {task.name!r} has one label alone, {labels.names[0]!r}: nothing can be learned.")
    if numbers["test"] is None:
        raise UserError(f"The task {task.name!r}: its data for {name!r} has no labels. Give a test split that has.")


def _test_splits(task: Task, splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """The test split (or, where there is none, the validation split), and the files that the task adds."""
    name = next((split for split in ("test", "validation") if split in splits), None)
    if name is None:
        raise UserError(f"The task {task.name!r} has nothing to test on: {task.data!r} has {', '.join(splits)} alone.")
    tests = {"test": splits[name]}
    for file in task.extra_tests:
        path = Path(resolve_data(task.data)) / file
        if Path(file).name != file:  # a plan may be a stranger's
            raise UserError(f"The task {task.name!r} names {file!r}, a test file outside {task.data!r}.")
        if not path.is_file():
            raise UserError(f"The task {task.name!r} names the test file {file!r}, which {str(path.parent)!r} lacks.")
        part = path.name.split(".")[0]
        if part in {**splits, **tests}:
            raise UserError(f"The task {task.name!r} names the test file {file!r}: there is a part {part!r} already.")
        tests[part] = read_file(str(path))
    return tests


def test_parts(
    plan: Plan,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    problem_type: str,
    development: Path | None,
) -> Iterator[TestPart]:
    """The parts of a task at every test length, as token ids; the same for all schemes and seeds.

    Args:
        plan, task: what is tested.
        tokenizer: the trained model's.
        labels: its labels, in order.
        problem_type: its task.
        development: the folder of generated data. Then the test is the one on which rates are chosen, at the train
            length.
    """
    lengths = plan.lengths if development is None else (plan.train_length,)
    if task.is_generated:
        for length in lengths:
            seed = TEST_SEED + length if development is None else TEST_SEED - length
            yield from _generated_parts(plan, task, length, tokenizer, labels, seed)
        return
    data = plan.data_options(task)
    splits = load_task(plan, task)
    columns = find_columns(splits["train"], data)
    tests = _named_tests(plan, task, splits) if development is None else _held_out(plan, task, splits, development)
    for name, rows in tests.items():
        numbers = encode_labels({"test": rows}, columns, data, label_names=labels, problem_type=problem_type)[1]["test"]

        def cut(length: int, rows: Dataset = rows, numbers: Any = numbers, name: str = name) -> Dataset:
            encoded, _ = encode_texts(columns.texts(rows), tokenizer, length, split=name)
            return encoded.add_column("labels", numbers)

        if task.lengths == "buckets" and development is None:
            yield from _buckets(name, cut(lengths[-1]), lengths)
            continue
        for length in lengths:
            part = TestPart(name, length, cut(length))
            yield part
            if part.longest < length:
                break  # nothing was cut, so that longer ones would be the same


def _buckets(name: str, whole: Dataset, lengths: tuple[int, ...]) -> Iterator[TestPart]:
    """Those of about each length; what fills the last length to the brim was longer, and has been cut."""
    sizes = [len(ids) for ids in whole["input_ids"]]
    for shorter, length in zip((0, *lengths), lengths, strict=False):
        chosen = [i for i, size in enumerate(sizes) if shorter < size <= length and size < lengths[-1]]
        if chosen:
            yield TestPart(name, length, whole.select(chosen))


def _held_out(plan: Plan, task: Task, splits: dict[str, Dataset], folder: Path) -> dict[str, Dataset]:
    files = development_files(plan, task, folder)
    rows = splits["validation"] if files is None else read_file(str(files[1]))
    return {task.name: _sample(rows, plan.test_examples_of(task))}


def _generated_parts(
    plan: Plan, task: Task, length: int, tokenizer: PreTrainedTokenizerBase, labels: tuple[str, ...], seed: int
) -> Iterator[TestPart]:
    count = plan.test_examples_of(task)
    assert count is not None
    numbers = {label: number for number, label in enumerate(labels)}
    for name in [task.name] if task.data == CONTROL else task.probes or PROBES:
        if task.data == CONTROL:
            rows = list(make_halves(count, (length, length), seed))
        else:
            rows = list(make_probes(max(1, count // 2), (length, length), seed, [name]))
        encoded = tokenizer([row["text"] for row in rows])
        dataset = Dataset.from_dict({**encoded, "labels": [numbers[row["label"]] for row in rows]})
        yield TestPart(name, length, dataset)


def _named_tests(plan: Plan, task: Task, splits: dict[str, Dataset]) -> dict[str, Dataset]:
    named: dict[str, Dataset] = {}
    for name, rows in _test_splits(task, splits).items():
        named[task.name if name == "test" else f"{task.name}/{name}"] = _sample(rows, plan.test_examples_of(task))
    if task.lengths != "buckets":
        return named
    columns = sorted(set.intersection(*(set(rows.column_names) for rows in named.values())))
    return {task.name: concatenate_datasets([rows.select_columns(columns) for rows in named.values()])}


def _first(rows: Dataset, count: int | None) -> Dataset:
    return rows if count is None or count >= len(rows) else rows.select(range(count))


def _sample(rows: Dataset, count: int | None) -> Dataset:
    """So many rows, drawn from all, the same ones each time and in their order."""
    if count is None or count >= len(rows):
        return rows
    return rows.select(sorted(random.Random(0).sample(range(len(rows)), count)))
