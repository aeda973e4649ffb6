"""Baselines that every scheme has to beat: majority, words and word pairs (TF-IDF, logistic regression).

Beside the probes stand two more: words at places, and the usual form of a question alone. The baselines are tested on
the examples of the runs. They read the models' tokens, decoded: all inputs are cut alike.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_posenc.data.encoding import encode
from hf_posenc.data.preparing import prepare
from hf_posenc.data.sources import read
from hf_posenc.errors import UserError
from hf_posenc.finetuning.loading import input_length
from hf_posenc.finetuning.start import check_start, known_labels, start
from hf_posenc.options import Options
from hf_posenc.training.baseline import BagOfWords, WordPairs, WordsAtPlaces, most_frequent

from .outcomes import classification_outcome
from .plan import DEVELOPMENT_SEED, Plan, PlannedRun, Task
from .probes import OPPOSITES
from .tasks import test_parts, training_options

MAJORITY, WORDS, WORD_PAIRS, PLACES = "majority", "words", "word pairs", "words at places"
USUAL_FORM = "usual form alone"
"""Answers the usual form of a probe's question, and says no to its opposite: it is right in three quarters."""
LINEAR: dict[str, type[BagOfWords]] = {WORDS: BagOfWords, WORD_PAIRS: WordPairs, PLACES: WordsAtPlaces}
"""The linear models, by name."""
TO_BEAT = (*LINEAR, USUAL_FORM)
"""All baselines but the majority."""
REFERENCES_NAME = "baselines"


def to_beat(task: Task) -> list[str]:
    """The baselines of a task; the last two are for probes alone."""
    return [name for name in TO_BEAT if name not in (PLACES, USUAL_FORM) or task.kind == "probes"]


def measure_references(plan: Plan, task: Task, data_folder: Path) -> list[dict[str, Any]]:
    """The baselines of a classification; linear models only where the texts allow them.

    Each has a run's `tests`, and in `development` its value in each part that learning rates are chosen on: which of
    them has to be beaten is chosen there, too. It is empty where no rows can be spared for that.

    Args:
        plan, task: what is compared. Generated training examples are those of the first seed.
        data_folder: where generated data and converted checkpoints lie.

    Raises:
        UserError: the data can't be read.
    """
    tested = _tests(plan, PlannedRun(task, "none", plan.seeds[0]), data_folder)
    chosen: dict[str, list[dict[str, Any]]] = {}
    with contextlib.suppress(UserError):  # so few rows that none can be spared
        chosen = _tests(plan, PlannedRun(task, "none", DEVELOPMENT_SEED, factor=1.0), data_folder)
    return [
        {
            "task": task.name,
            "scheme": name,
            "tests": entries,
            "development": {entry["part"]: entry["value"] for entry in chosen.get(name, ())},
        }
        for name, entries in tested.items()
    ]


def _tests(plan: Plan, run: PlannedRun, data_folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each baseline reaches on the training and test data of a run, or of a trial of its learning rate."""
    task = run.task
    options = {
        **plan.options_of(task),
        **training_options(plan, run, data_folder),
    }
    if plan.pretrained is not None:
        options["pretrained"] = str(plan.checkpoint(plan.schemes[0], data_folder))
    else:
        options["scheme"] = "none"  # no scheme of the user's own has to be built
    chosen = Options.of(**options)
    config = check_start(chosen)
    prepared = prepare(read(chosen), chosen, known_labels(config))
    tokenizer, model, _ = start(chosen, prepared, config)
    train: Any = encode(prepared, tokenizer, input_length(model, tokenizer, chosen.max_length))["train"]
    labels, names, problem_type = list(train["labels"]), prepared.labels.names, prepared.labels.problem_type
    most, columns = most_frequent(labels, problem_type), len(prepared.columns.text)
    texts = _texts(train, tokenizer, columns)
    models: dict[str, BagOfWords] = {}
    asked = to_beat(task)
    for name in (name for name in LINEAR if name in asked):
        with contextlib.suppress(ValueError):  # no word in the texts, or one class
            models[name] = LINEAR[name](problem_type).fit(texts, labels)
    contenders = [MAJORITY, *models, *(name for name in asked if name == USUAL_FORM)]
    tests: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    development = None if run.factor is None else data_folder
    for part in test_parts(plan, task, tokenizer, names, problem_type, development):
        right = np.asarray(part.dataset["labels"])
        texts = _texts(part.dataset, tokenizer, columns)
        for name, entries in tests.items():
            if name == USUAL_FORM:
                answers = answer_usual(texts[0], right, names.index("no"))
            else:
                answers = models[name].predict(texts) if name in models else np.full(len(right), most)
            outcome = classification_outcome(task.metric, right, answers, len(names), part.groups)
            score = {"metric": task.metric, "value": outcome.value(), "units": outcome.to_dict()}
            entries.append(part.entry() | score)
    return tests


def answer_usual(texts: Sequence[str], right: np.ndarray, no: int) -> np.ndarray:
    """The answers of `USUAL_FORM`, (n,), to texts of probes with these right answers; `no` is that label's number."""
    return np.where([text.split()[1] in OPPOSITES for text in texts], no, right)


def _texts(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, columns: int) -> list[list[str]]:
    """The texts that a model reads, for pairs the first ones and the second ones."""
    special = set(tokenizer.all_special_ids)
    texts: list[list[str]] = [[] for _ in range(columns)]
    for ids in dataset["input_ids"]:
        segments = _segments(list(ids), special - {tokenizer.unk_token_id})
        for column in range(columns):
            segment = segments[column] if column < len(segments) else []
            texts[column].append(str(tokenizer.decode(segment)))
    return texts


def _segments(ids: Sequence[int], special: set[int]) -> list[list[int]]:
    segments: list[list[int]] = [[]]
    for token in ids:
        if token not in special:
            segments[-1].append(token)
        elif segments[-1]:
            segments.append([])
    return segments
