"""Baselines that every scheme has to beat: the majority, words and word pairs (TF-IDF, logistic regression).

Beside the probes stand two more: words at places, and the usual form of a question alone. The baselines are tested on
the examples of the runs. They read the models' tokens, decoded: all inputs are cut alike.
"""

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, product, repeat
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import input_length
from ..data.preparing import encode, prepare
from ..errors import one_line
from ..finetuning.start import check_start, start
from ..options import Options
from ..training.baselines import (
    FEATURES,
    STRENGTHS,
    fit_words,
    most_frequent,
    sample_in_words,
    vocabulary_in_words,
)
from ..training.recipe import Recipe, make_recipe
from .plan import MAJORITY, PlannedRun
from .probes import OPPOSITES
from .run import run_options
from .tasks import TaskData

WORDS, WORD_PAIRS, WORD_PLACES = FEATURES
USUAL_FORM = "usual form alone"
BASELINES = {
    MAJORITY: "the most frequent label",
    WORDS: "a linear model on words, which sees no order",
    WORD_PAIRS: "a linear model on words and pairs of neighbours",
    WORD_PLACES: "a linear model on words with their places",
    USUAL_FORM: "right where a probe is asked in its usual form, answers no to its opposite",
}
"""What each does, in words."""
_TIMED_STEPS = 4


def measure_baselines(data: TaskData, tokenizer_folder: Path) -> dict[str, Any]:
    """The baselines of a classification; linear models only where the texts allow them.

    Args:
        data: of the task. Generated training examples are those of the first seed.
        tokenizer_folder: of the tokenizer of generated data.

    Returns:
        `rows` of the results, those of what was `tried` where the plan chooses rates, `seconds` that a run will take
        about, by a few steps with the first scheme, and how many of its `texts` are `cut` at the train length; and what
        is `said` of linear models.

    Raises:
        UserError: the data can't be read.
    """
    plan, task = data.plan, data.task
    # From scratch no scheme of the user's own has to be built.
    run = PlannedRun(task, plan.schemes[0] if plan.pretrained else "none", plan.seeds[0])
    tokenizer_option = {"tokenizer": str(tokenizer_folder)} if task.is_generated else {}
    options = Options.of(**run_options(replace(plan, until_flat=None), run), **tokenizer_option, output="timed")
    beginning = check_start(options)
    prepared = prepare({"train": data.training_rows(run)}, options, beginning.known)
    tokenizer, model, _ = start(options, prepared, beginning)
    tokenizer.model_max_length = input_length(model, tokenizer, options.max_length)
    encoded, cut = encode(prepared, tokenizer, tokenizer.model_max_length)
    train: Any = encoded["train"]
    labels, names, problem_type = list(train["labels"]), prepared.labels.names, prepared.labels.problem_type
    most, columns = most_frequent(labels, problem_type), len(prepared.columns.text)
    texts = _texts(train, tokenizer, columns)
    models: dict[str, Any] = {}
    said = sample_in_words(texts)
    linear = tuple(FEATURES) if task.data == "probes" else (WORDS, WORD_PAIRS)
    tried = _tried(data, run, options, tokenizer, linear) if plan.search else []
    for name in linear:
        try:
            models[name] = fit_words(texts, labels, name, problem_type, _best_strength(tried, name))
            said += vocabulary_in_words(models[name], name)
        except ValueError as error:  # no word in the texts, one class, or too many
            said.append(f"No baseline on {name}: {one_line(error)}.")
    rows = []
    for part in data.test_parts(tokenizer, names):
        right = np.asarray(part.dataset["labels"])
        texts = _texts(part.dataset, tokenizer, columns)
        answers = {MAJORITY: np.full(len(right), most)}
        answers |= {name: fitted.predict(texts) for name, fitted in models.items()}
        if task.data == "probes":
            answers[USUAL_FORM] = answer_usual(texts[0], right, names.index("no"))
        rows += [{"task": task.name, "scheme": name, **part.row(task.metric, given)} for name, given in answers.items()]
    recipe = make_recipe(options, model, tokenizer, {"train": train})
    seconds = _run_seconds(model, tokenizer, train, recipe, plan.until_flat.most if plan.until_flat else None)
    counts = {"texts": len(train), "cut": cut.get("train", 0)}
    return {"rows": rows, "tried": tried, "seconds": seconds, **counts, "said": said}


def _tried(
    data: TaskData, run: PlannedRun, options: Options, tokenizer: PreTrainedTokenizerBase, linear: Sequence[str]
) -> list[dict[str, Any]]:
    """The scores of linear models at each `C`, on the rows on which learning rates are chosen, too.

    Of generated tasks they are fitted to the rows of the first seed, as those of the table.
    """
    prepared = prepare({"train": data.training_rows(replace(run, factor=1.0))}, options)
    encoded, _ = encode(prepared, tokenizer, tokenizer.model_max_length)
    columns = len(prepared.columns.text)
    train: Any = encoded["train"]
    texts = _texts(train, tokenizer, columns)
    parts = data.test_parts(tokenizer, prepared.labels.names, trial=True)
    asked = [(part, _texts(part.dataset, tokenizer, columns)) for part in parts]
    rows = []
    for name, strength in product(linear, STRENGTHS):
        with contextlib.suppress(ValueError):  # said where it is fitted to all
            fitted = fit_words(texts, list(train["labels"]), name, prepared.labels.problem_type, strength)
            of_it = {"task": data.task.name, "scheme": name, "C": strength}
            rows += [{**of_it, **part.row(data.task.metric, fitted.predict(given))} for part, given in asked]
    return rows


def _best_strength(tried: Sequence[dict[str, Any]], name: str) -> float:
    """The `C` with the best mean score; of equal ones, and where none was tried, the first."""
    scores = {
        strength: [row["score"] for row in tried if (row["scheme"], row["C"]) == (name, strength)]
        for strength in STRENGTHS
    }
    return max(STRENGTHS, key=lambda strength: fmean(scores[strength] or [0.0]))


def _run_seconds(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, train: Dataset, recipe: Recipe, most: int | None
) -> float:
    """About how long a run trains, by the time of a few of its steps; one that may end before as if it took all."""
    model.train().to(device=recipe.device)
    size = recipe.train_batch_size
    by_recipe = recipe.max_steps if recipe.max_steps > 0 else math.ceil(len(train) / size) * recipe.num_train_epochs
    steps = by_recipe if most is None else most
    started = 0.0
    for step in range(_TIMED_STEPS):
        rows = train.select([(step * size + row) % len(train) for row in range(size)])
        batch = tokenizer.pad(rows.to_dict(), return_tensors="pt").to(recipe.device)
        if step == 1:  # the first one is slower
            started = time.perf_counter()
        loss = model(**batch).loss
        loss.backward()
    loss.item()  # waits for a GPU
    return (time.perf_counter() - started) / (_TIMED_STEPS - 1) * steps


def answer_usual(texts: Sequence[str], right: np.ndarray, no: int) -> np.ndarray:
    """The answers of `USUAL_FORM`, (n,), to texts of probes with these right answers; `no` is that label's number."""
    return np.where([text.split()[1] in OPPOSITES for text in texts], no, right)


def _texts(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, columns: int) -> list[list[str]]:
    """The texts that a model reads, for pairs the first ones and the second ones; special tokens inside one stay."""
    before, *between, after = _specials(tokenizer, columns)
    kinds = dataset["token_type_ids"] if "token_type_ids" in dataset.column_names else repeat(())
    texts: list[list[str]] = [[] for _ in range(columns)]
    for ids, types in zip(dataset["input_ids"], kinds, strict=False):
        inner, parts = ids[len(before) : len(ids) - len(after)], []
        for joint in between:
            second = list(types).index(1) - len(before) if 1 in types else _place(joint, inner) + len(joint)
            parts.append(inner[: second - len(joint)])
            inner = inner[second:]
        for column, part in zip(texts, [*parts, inner, *[[]] * columns], strict=False):
            column.append(str(tokenizer.decode(part)))
    return texts


def _specials(tokenizer: PreTrainedTokenizerBase, columns: int) -> list[list[int]]:
    """The special tokens before the first text, between two, and after the last one."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    ids = tokenizer(*["a"] * columns)["input_ids"]
    runs = [(is_special, list(run)) for is_special, run in groupby(ids, special.__contains__)]
    first, last = runs[0][0], runs[-1][0]
    return [[]] * (not first) + [run for is_special, run in runs if is_special] + [[]] * (not last)


def _place(joint: list[int], ids: list[int]) -> int:
    """Where these tokens stand first."""
    return next(place for place in range(len(ids)) if ids[place : place + len(joint)] == joint)
