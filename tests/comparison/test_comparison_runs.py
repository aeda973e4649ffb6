"""Runs: only positions change, what is done stays done, and what fails stays alone."""

import errno
import functools
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from filelock import FileLock
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Trainer

import hf_posenc
from hf_posenc import SCHEMES, Comparison, PosEncConfig, PosEncForSequenceClassification, PosEncModel, register_scheme
from hf_posenc.comparison import engine, execute, read_plan
from hf_posenc.comparison.baselines import WORD_PAIRS, WORDS, _texts, measure_baselines
from hf_posenc.comparison.results import write_failure, write_result
from hf_posenc.comparison.run import is_rising, rate_of_run
from hf_posenc.comparison.tasks import TaskData, make_tokenizer, points
from hf_posenc.data.preparing import marks_of, prepare
from hf_posenc.data.reading import read_file
from hf_posenc.data.tokenizer import train_tokenizer
from hf_posenc.errors import Interrupted, UserError
from hf_posenc.training.baselines import STRENGTHS
from tests.support.common import write_jsonl
from tests.support.comparison import (
    SMALL,
    TEXT,
    TOY,
    done_run,
    printed,
    quiet,
    read_rows,
    read_run,
    row,
    toy,
    write_text_data,
)
from tests.support.idle_scheme import Idle

LINEAR = (WORDS, WORD_PAIRS)
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme" / "recency.py"
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def values_of(rows, keys):
    return [[row[key] for key in keys] for row in rows]


# What all runs share


def test_a_scheme_that_is_called_like_a_baseline_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(SCHEMES, "words", Idle)
    with pytest.raises(UserError, match="name 'words' is a baseline's in the table of results"):
        execute(toy(schemes=["none", "words"]), tmp_path, console=quiet())


@pytest.mark.slow
def test_data_order_and_budget_are_equal_too(tmp_path):
    """A scheme that does nothing, but draws random numbers for its weights, is `none` to the last digit."""
    register_scheme(Idle, "test_idle")
    # Without clipping: the norm of all gradients is summed in another order with more of them, and rounds.
    unclipped = {**SMALL, "set": {**SMALL["set"], "max_grad_norm": 0}}
    plan = toy(schemes=["none", "test_idle"], options=unclipped)
    assert execute(plan, tmp_path, keep_models=True, console=quiet()).failed == {}
    none, idle = (read_run(tmp_path, f"probes-{scheme}-seed0") for scheme in plan.schemes)
    keys = ("part", "length", "score", "examples")
    assert values_of(none["rows"], keys) == values_of(idle["rows"], keys)
    assert idle["parameters"] - none["parameters"] == 32 * 32 + 32
    # Each pair has one right answer, whatever was learned: exactly one half, at every length.
    assert {entry["score"] for entry in none["rows"]} == {0.5}
    models = [
        PosEncForSequenceClassification.from_pretrained(tmp_path / "models" / f"probes-{scheme}-seed0").state_dict()
        for scheme in plan.schemes
    ]
    assert all(torch.equal(models[1][name], value) for name, value in models[0].items())


def test_a_run_says_all_about_itself(tmp_path):
    plan = toy(schemes=["learned"], scheme_kwargs={"learned": {"std": 0.1}})
    execute(plan, tmp_path, console=quiet())
    run = read_run(tmp_path, "probes-learned-seed0")
    assert (run["steps"], run["rate"]) == (8, 0.001)
    # In a copy that is no repository there is none.
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=EXAMPLE.parent, capture_output=True, text=True, check=False)
    digest, _, state = run["commit"].partition("-")
    assert (digest, state in ("", "dirty")) == (head.stdout[:12].strip(), True)
    tests = [("order_near", 32), ("parity", 32), ("order_near", 48), ("parity", 48)]
    assert [(entry["part"], entry["length"]) for entry in run["rows"]] == tests
    assert [entry["score"] is None for entry in run["rows"]] == [False, False, True, True]  # its table ends
    assert {entry["examples"] for entry in run["rows"]} == {20}
    made = Comparison(tmp_path)
    table = made.table
    assert made.missing == []
    baselines = ["majority", "words", "word pairs", "words at places", "usual form alone"]
    assert [*table["scheme"].unique()] == [*baselines, "learned"]
    usual = table[(table["scheme"] == "usual form alone") & (table["length"] == 48)]
    assert [*usual["score"]] == [0.75, 0.75]
    assert not any((tmp_path / "models").iterdir())


def test_training_data_differ_by_seed_and_are_the_same_for_all_schemes():
    plan = toy(seeds=2)
    data = TaskData(plan, plan.tasks[0])
    first, second, third, fourth = (data.training_rows(run).cells("text") for run in plan.runs())
    assert len(first) == 64
    assert (first == second, third == fourth, {*first} == {*third}) == (True, True, False)


# What is made, skipped, shared, and tried again


@pytest.mark.parametrize("error", [RuntimeError, ValueError, PermissionError])
def test_why_a_run_failed_holds_no_token(error, tmp_path, pretended):
    token, console = f"hf_{'aB3' * 11}", quiet()
    pretended[0]["rope"] = error(f"You sent {token}")
    failed = execute(toy(schemes=["rope"]), tmp_path, console=console).failed
    assert token not in f"{failed}{printed(console)}"
    assert "You sent hf_..." in failed["probes-rope-seed0"]
    assert "failed: " in printed(console)
    assert "You sent hf_..." in Comparison(tmp_path).failed["probes-rope-seed0"]


@pytest.mark.parametrize("text", ["[1]", "{", '{"reason": null}', "[" * 100_000])
def test_a_failure_with_a_reason_that_can_not_be_read_stays_one(text, tmp_path, pretended):
    pretended[0]["rope"] = ValueError("no bananas")
    execute(toy(schemes=["rope"]), tmp_path, console=quiet())
    (tmp_path / "failures" / "probes-rope-seed0.json").write_text(text)
    assert Comparison(tmp_path).failed["probes-rope-seed0"] == "probes-rope-seed0.json can't be read"


def test_what_is_done_is_skipped_and_what_failed_is_tried_again(tmp_path, pretended):
    broken, made = pretended
    broken["rope"] = ValueError("rope  has\nno bananas")
    plan, console = toy(schemes=["none", "rope", "t5"], seeds=4), quiet()
    first = execute(plan, tmp_path, console=console)
    assert len(first.done) == 8
    names = [f"probes-rope-seed{seed}" for seed in range(4)]
    assert first.failed == dict.fromkeys(names, "rope has no bananas")
    assert "12 of 12 runs to make, about 0:00:12 here. With 4 seeds and 6 tests a difference must exceed" in printed(
        console
    )
    assert "probes: 3 of 64 training texts are cut at 32 tokens" in printed(console)
    assert "probes: No baseline on words: no word." in printed(console)
    assert re.search(r"\[2 of 12\] probes-rope-seed0: failed: rope has no bananas", printed(console))
    del broken["rope"], made[:]
    again = execute(plan, tmp_path, console=console)
    assert again.done == made == names
    assert len(again.skipped) == 8
    assert "4 of 12 runs to make" in printed(console)
    path = tmp_path / "runs" / "probes-t5-seed0.json"
    path.write_text('{"status": "do')  # cut in the middle
    for read in (Comparison, functools.partial(execute, plan, console=console)):
        with pytest.raises(UserError, match="probes-t5-seed0.json' is damaged, .* Take it out of the folder, and run"):
            read(tmp_path)
    path.unlink()
    assert Comparison(tmp_path).missing == ["probes-t5-seed0"]
    assert execute(plan, tmp_path, console=console).done == ["probes-t5-seed0"]


def test_a_full_disk_costs_one_run_and_nothing_else(tmp_path, pretended, monkeypatch):
    def no_room(folder, plan, of, result):
        if of in plan.runs() and of.scheme == "rope":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_result(folder, plan, of, result)

    plan = toy(schemes=["none", "rope", "t5"])
    with monkeypatch.context() as patched:
        patched.setattr("hf_posenc.comparison.executor.write_result", no_room)
        outcome = execute(plan, tmp_path, console=quiet())
    assert outcome.done == ["probes-none-seed0", "probes-t5-seed0"]
    assert "No space left on device" in outcome.failed["probes-rope-seed0"]
    assert execute(plan, tmp_path, console=quiet()).done == ["probes-rope-seed0"]


def test_a_folder_of_another_plan_or_of_something_else_is_refused(tmp_path, pretended):
    execute(toy(), tmp_path / "a", console=quiet())
    with pytest.raises(UserError, match="'.*a' holds another plan: it differs in train_length .32 there, 40 here."):
        execute(toy(train_length=40), tmp_path / "a", console=quiet())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("important")
    with pytest.raises(UserError, match=r"holds no results of a comparison, but thesis.tex. Name a new folder"):
        execute(toy(), tmp_path / "b", console=quiet())
    execute(toy(tasks=[{"data": "probes", "train_examples": 28}]), tmp_path / "c", console=quiet())
    name = "runs/probes-none-seed0.json"
    shutil.copy(tmp_path / "c" / name, tmp_path / "a" / name)
    with pytest.raises(UserError, match=f"{name}' is damaged, or of another plan than plan.json says"):
        execute(toy(), tmp_path / "a", console=quiet())
    Comparison(tmp_path / "c").report()
    shutil.rmtree(tmp_path / "c" / "runs")
    assert len(Comparison(tmp_path / "c").table) == 2  # a table alone can be read
    with pytest.raises(UserError, match="holds a table whose runs aren't there"):
        execute(toy(), tmp_path / "c", console=quiet())


def test_shared_texts_are_said_and_data_that_has_changed_is_refused(tmp_path, pretended, caplog):
    folder = write_text_data(tmp_path / "colours")
    shared = read_rows(folder / "train.jsonl")[:3]
    write_jsonl(folder / "test.jsonl", read_rows(folder / "test.jsonl") + shared)
    write_jsonl(folder / "validation.jsonl", read_rows(folder / "train.jsonl")[:8])
    plan = toy(**{**TEXT, "tasks": [{"data": str(folder)}], "until_flat": {}})
    execute(plan, tmp_path / "results", console=quiet())
    assert re.search(r"The task .colours.: 3 of 43 test texts also in the training data", caplog.text)
    damaged = tmp_path / "results" / "baselines" / "colours.json"
    whole = damaged.read_text()
    damaged.write_text(whole[:9])
    with pytest.raises(UserError, match="colours.json' is damaged, .* Take it out of the folder"):
        execute(plan, tmp_path / "results", console=quiet())
    damaged.write_text(whole)
    assert len(execute(plan, tmp_path / "results", console=quiet()).skipped) == 2
    for path in (folder / "test.jsonl", folder / "validation.jsonl"):
        first, *others = whole = read_rows(path)
        write_jsonl(path, [{**first, "text": first["text"] + " grey"}, *others])
        with pytest.raises(UserError, match="the data of 'colours', which has changed since the first runs"):
            execute(plan, tmp_path / "results", console=quiet())
        write_jsonl(path, whole)


def test_what_another_process_left_unmade_is_made(tmp_path, pretended, monkeypatch):
    """A trial that its runs wait for, and a run; what another one is making still, and what failed there, isn't."""
    plan, locks = toy(schemes=["none", "rope"], search=[1, 2], seeds=4), tmp_path / ".locks"
    locks.mkdir()
    trial, run, failed, still = (
        *("probes-none-rate2x-seed1000000", "probes-rope-seed0"),
        *("probes-rope-seed1", "probes-none-seed1"),
    )
    held = {name: FileLock(locks / f"{name}.lock") for name in (trial, run, failed, still)}
    for lock in held.values():
        lock.acquire()
    made = engine.run_one

    def make(data, of, *given):
        if of.name == "probes-rope-rate2x-seed1000000":
            held[trial].release()
        if of.name == "probes-rope-seed3":
            held[run].release()
            held[failed].release()
            write_failure(tmp_path, next(r for r in plan.runs() if r.name == failed), "it rained")
        return made(data, of, *given)

    monkeypatch.setattr(engine, "run_one", make)
    outcome = execute(plan, tmp_path, console=quiet())
    assert {trial, run, "probes-none-seed0"} < set(outcome.done)
    assert (sorted(outcome.elsewhere), outcome.failed) == (sorted([failed, still]), {})
    assert Comparison(tmp_path).failed == {failed: "it rained"}
    held[still].release()
    assert sorted(execute(plan, tmp_path, console=quiet()).done) == sorted([failed, still])


def test_an_interrupted_run_goes_on_to_the_same_end(tmp_path, monkeypatch):
    plan = toy(schemes=["rope"])
    execute(plan, tmp_path / "whole", console=quiet())

    train = Trainer.training_step

    def stop(self, *given, **named):
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return train(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "training_step", stop)
        with pytest.raises(Interrupted, match="the newest checkpoint of a run. Compare again, and it goes on"):
            execute(plan, tmp_path / "cut", console=quiet())
    work = tmp_path / "cut" / "models" / "probes-rope-seed0"
    assert [path.name for path in work.glob("checkpoint-*")] == ["checkpoint-2"]
    seen, one = [], engine.run_one
    monkeypatch.setattr(engine, "run_one", lambda *given: seen.append([*work.glob("checkpoint-*")]) or one(*given))
    assert execute(plan, tmp_path / "cut", console=quiet()).done == ["probes-rope-seed0"]
    whole, cut = (read_run(tmp_path / name, "probes-rope-seed0") for name in ("whole", "cut"))
    assert (len(seen[0]), cut["steps"]) == (1, whole["steps"])
    assert [entry["score"] for entry in cut["rows"]] == [entry["score"] for entry in whole["rows"]]
    assert whole["seconds"] > 0
    assert cut["seconds"] is None  # those before the stop aren't known
    report = Comparison(tmp_path / "cut").report().read_text()
    assert re.search(r"^\| `rope` \|.*\|  \| [\d,]+ \|$", report, re.MULTILINE)
    assert not work.exists()


def test_a_run_computes_in_the_threads_of_the_plan(tmp_path, monkeypatch, pretended, request):
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)
    seen, made = [], engine.run_one
    monkeypatch.setattr(engine, "run_one", lambda *given: seen.append(torch.get_num_threads()) or made(*given))
    for threads, scheme in ((1, "none"), (None, "rope")):
        plan = read_plan("quick", tasks=["halves"], schemes=[scheme])
        execute(replace(plan, threads=threads), tmp_path / scheme, console=quiet())
    assert (seen, torch.get_num_threads()) == ([1, 2], 2)


# What is tested


def parts_of(folder, **fields):
    """The tests of a task, without a model."""
    plan = toy(**{**TEXT, "tasks": [{"data": str(folder)}], **fields})
    texts = [entry["text"] for entry in read_rows(folder / "train.jsonl")]
    tokenizer = train_tokenizer([*texts, "first second"], model_max_length=512)
    return {
        (part.name, part.length): (tokenizer.batch_decode(list(part.dataset["input_ids"])), part)
        for part in TaskData(plan, plan.tasks[0]).test_parts(tokenizer, ("bad", "good"))
    }


def test_a_pair_is_cut_as_in_training(tmp_path):
    """The longer of both: a statement about a long document must stay."""
    folder = write_text_data(tmp_path / "colours")
    for name in ("train", "test"):
        path = folder / f"{name}.jsonl"
        write_jsonl(path, [{**entry, "text_pair": "first second"} for entry in read_rows(path)])
    parts = parts_of(folder)
    assert [length for _, length in parts] == [24, 36, 48]
    for (_, length), (texts, part) in parts.items():
        assert part.longest == min(length, 46)
        assert all(text.endswith("first second [SEP]") for text in texts)


def test_texts_that_a_shorter_length_holds_are_tested_at_the_train_length_too(tmp_path):
    parts = parts_of(write_text_data(tmp_path / "colours"), train_length=48, test_lengths=[44, 48, 60])
    assert [length for _, length in parts] == [44, 48]


@pytest.mark.parametrize("joint", [["[SEP]"], ["</s>", "</s>"]])
@pytest.mark.parametrize("has_types", [True, False])
@pytest.mark.parametrize(
    "texts", [(["a b"],), (["a [SEP] b"],), (["a b"], ["c"]), (["[UNK]"], ["c [SEP] d"]), ([""], ["b"]), (["a"], [""])]
)
def test_baselines_read_each_text_whole_between_the_special_tokens(texts, joint, has_types):
    words = ["[UNK]", "[CLS]", "[SEP]", "</s>", *"abcd"]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A {' '.join(joint)} $B:1 [SEP]:1",
        special_tokens=[(word, words.index(word)) for word in words[1:4]],
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=["input_ids"], **names)
    encoded = tokenizer(*texts, return_token_type_ids=True)
    columns = {"input_ids": encoded["input_ids"]}
    columns |= {"token_type_ids": encoded["token_type_ids"]} if has_types else {}
    assert _texts(Dataset.from_dict(columns), tokenizer, len(texts)) == list(texts)


def test_a_tokenizer_without_special_tokens_leaves_a_text_whole():
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    assert _texts(Dataset.from_dict({"input_ids": [[1, 2]]}), tokenizer, 1) == [["a b"]]


def test_some_of_the_tests_are_drawn_from_all(tmp_path):
    folder = write_text_data(tmp_path / "colours")
    path = folder / "test.jsonl"
    write_jsonl(path, sorted(read_rows(path), key=lambda entry: entry["label"]))
    (texts, part), *_ = parts_of(folder, test_examples=20).values()
    assert len(part.dataset) == 20
    assert 5 <= sum(part.dataset["labels"]) <= 15  # the first 20 rows have one label
    assert next(iter(parts_of(folder, test_examples=20).values()))[0] == texts


@pytest.mark.parametrize("has_splits", [True, False])
def test_no_number_of_examples_splits_a_pair_of_the_same_words(tmp_path, has_splits):
    """Not of training rows, nor of those that choose a rate, nor of the test's, be they drawn or a tenth of a file."""
    rows = [
        {"text": " ".join(words), "label": label}
        for number in range(40)
        for label, words in (("good", (f"w{number}", "sees", "me.")), ("bad", ("me", "sees", f"w{number}.")))
    ]
    np.random.default_rng(0).shuffle(rows)
    (tmp_path / "pairs").mkdir()
    for split in ("train", "test"):
        write_jsonl(tmp_path / "pairs" / f"{split}.jsonl", rows)
    data = tmp_path / "pairs" if has_splits else tmp_path / "pairs" / "train.jsonl"
    plan = toy(**{**TEXT, "test_examples": 5, "train_examples": 21, "search": [1, 2], "tasks": [str(data)]})
    of_task = TaskData(plan, plan.tasks[0])
    tokenizer = train_tokenizer([row["text"] for row in rows], vocab_size=400)
    trained = prepare(of_task.splits, of_task.options).splits["train"]
    parts = [next(of_task.test_parts(tokenizer, ("bad", "good"), trial=trial)).dataset["labels"] for trial in (0, 1)]
    chosen = [trained["text"], of_task.trial_splits["train"].cells("text"), of_task.trial_splits["test"].cells("text")]
    if not has_splits:
        chosen += [of_task.splits["train"].cells("text"), of_task.splits["test"].cells("text")]
    for texts in chosen:
        counts = Counter(re.search(r"w\d+", text)[0] for text in texts)
        assert set(counts.values()) == {2}
    assert trained["text"][:2] == [
        rows[0]["text"],
        next(row["text"] for row in rows[1:] if row["text"] in trained["text"]),
    ]
    assert (len(trained), [(len(part), sum(part)) for part in parts]) == (20, [(4, 2), (2, 1)])


def test_the_baselines_are_tested_on_the_examples_of_the_runs(tmp_path, monkeypatch):
    """All of them on data that are read once."""
    task = {"data": str(write_text_data(tmp_path / "colours"))}
    plan = toy(**{**TEXT, "tasks": [task], "seeds": 3, "test_lengths": [24], "options": {**SMALL, "max_steps": 1}})
    files = []
    monkeypatch.setattr(
        "hf_posenc.data.sources.read_file",
        lambda path, *how: files.append(Path(path).name) or read_file(path, *how),
    )
    assert execute(plan, tmp_path / "results", console=quiet()).failed == {}
    assert sorted(files) == ["test.jsonl", "train.jsonl"]
    run = read_run(tmp_path / "results", "colours-none-seed0")
    measured = json.loads((tmp_path / "results" / "baselines" / "colours.json").read_text())
    keys = ("part", "length", "examples")
    for name, score in {"majority": 0.5, "words": 1.0, "word pairs": 1.0}.items():  # "good" and "bad" are words
        rows = [entry for entry in measured["rows"] if entry["scheme"] == name]
        assert values_of(rows, keys) == values_of(run["rows"], keys)
        assert {entry["score"] for entry in rows} == {score}
    assert (measured["texts"], measured["cut"]) == (64, 0)
    assert 0 < measured["seconds"] < 60


@pytest.mark.parametrize("chooses_rates", [True, False])
def test_linear_models_are_tuned_where_rates_are_on_the_same_rows(tmp_path, monkeypatch, chooses_rates):
    task = {"data": str(write_text_data(tmp_path / "colours"))}
    search = {"search": [1.0, 2.0]} if chooses_rates else {}
    plan = toy(**{**TEXT, "tasks": [task], "options": {**SMALL, "max_steps": 1}, **search})
    fitted = []

    def fit(texts, labels, sees, problem_type, strength):
        """A model that knows one label with C = 100, and none otherwise."""
        fitted.append((sees, strength, len(texts[0])))
        answer = labels[0] if strength == 100 else -1
        return SimpleNamespace(predict=lambda texts: np.full(len(texts[0]), answer))

    monkeypatch.setattr("hf_posenc.comparison.baselines.fit_words", fit)
    monkeypatch.setattr("hf_posenc.comparison.baselines.vocabulary_in_words", lambda *_: [])
    measured = measure_baselines(TaskData(plan, plan.tasks[0]), tmp_path)
    assert [entry[:2] for entry in fitted[-2:]] == [(name, 100.0 if chooses_rates else 10.0) for name in LINEAR]
    tried = [(entry["scheme"], entry["C"], entry["score"]) for entry in measured["tried"]]
    assert len(tried) == len(fitted) - 2 == (2 * len(STRENGTHS) if chooses_rates else 0)
    if chooses_rates:
        assert {entry[2] for entry in fitted[:-2]} != {fitted[-1][2]}  # a tenth of the rows is set aside for this
        assert [entry[:2] for entry in tried] == [*itertools.product(LINEAR, STRENGTHS)]
        assert all((score > 0) == (strength == 100) for _, strength, score in tried)


def test_a_file_is_compared_on_rows_that_no_run_trains_on(tmp_path):
    rows = [f"{number} {'good' if number % 2 else 'bad'} film,{'yes' if number % 2 else 'no'}" for number in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join(["body,kind", *rows]) + "\n")
    options = {**SMALL, "text_column": "body", "label_column": "kind", "max_steps": 2}
    fields = {"train_length": 8, "test_lengths": [8], "train_examples": None, "test_examples": None}
    plan = toy(tasks=[str(tmp_path / "mine.csv")], schemes=["none"], options=options, **fields)
    data = TaskData(plan, plan.tasks[0])
    assert execute(plan, tmp_path / "results", console=quiet()).failed == {}
    run = read_run(tmp_path / "results", "mine-none-seed0")
    assert [(entry["part"], entry["examples"]) for entry in run["rows"]] == [("mine", 4)]
    parts = data.splits
    assert sorted([*parts["train"].cells("body"), *parts["test"].cells("body")]) == sorted(
        line.split(",")[0] for line in rows
    )
    trained = set(data.training_rows(plan.runs()[0]).cells("body"))
    assert (len(trained), trained & set(parts["test"].cells("body"))) == (36, set())
    assert sorted(parts["test"].cells("kind")) == ["no", "no", "yes", "yes"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"data": "nowhere"}, "'nowhere' can't be read: "),
        ({"data": "colours", "options": {"text_column": "body"}}, "no column 'body'"),
        ({"data": "stars"}, "'stars' is regression, which isn't compared"),
        ({"data": "many"}, "'many' is multi label classification, which isn't compared"),
        ({"data": "alike"}, "All 64 examples that are left to train on are of one class, 'good'"),
        ({"data": "unseen"}, "purple"),
        ({"data": "unlabelled"}, "its data for 'test' has no labels"),
        ({"data": "untested"}, "has nothing to test on"),
        ({"data": "untrained"}, "has no training data"),
        (
            {"data": "hot.csv", "options": {"label_column": "good,bad"}},
            "'hot' is multi label classification, which isn't com",
        ),
    ],
)
def test_wrong_data_is_named_before_any_run(tmp_path, monkeypatch, task, message):
    monkeypatch.setenv("HF_POSENC_DATA", str(tmp_path))
    for name in ("colours", "untested", "untrained"):
        write_text_data(tmp_path / name)
    changes = {
        "stars": lambda entry: {"label": 0.5 + (entry["label"] == "good")},
        "many": lambda entry: {"label": [entry["label"]]},
        "alike": lambda entry: {"label": "good"},
        "unseen": lambda entry: {"label": "purple"},
        "unlabelled": lambda entry: {"label": None},
    }
    for name, change in changes.items():
        for path in write_text_data(tmp_path / name).glob("*.jsonl"):
            if path.stem != "train" or name in ("stars", "many", "alike"):
                write_jsonl(path, [{**entry, **change(entry)} for entry in read_rows(path)])
    monkeypatch.chdir(tmp_path)
    lines = [f"film {number},{number % 2},{number % 3 % 2}" for number in range(64)]
    (tmp_path / "hot.csv").write_text("\n".join(["text,good,bad", *lines]) + "\n")
    (tmp_path / "untested" / "test.jsonl").unlink()
    (tmp_path / "untrained" / "train.jsonl").unlink()
    with pytest.raises(UserError, match=message):
        execute(toy(**{**TEXT, "tasks": [task]}), tmp_path / "results", console=quiet())
    assert not (tmp_path / "results").exists()


def test_labels_that_a_model_sees_alike_share_the_point():
    """As `none` does the two texts of a pair with the same words: its logits differ by rounding alone."""
    logits = np.array([[0.5, 0.5 + 1e-6], [0.5, 0.5 - 1e-6], [0.5, 0.9], [0.9, 0.5], [1e-5, 0.0]])
    assert points(logits, np.array([0, 0, 0, 0, 1])).tolist() == [0.5, 0.5, 0.0, 1.0, 0.5]


# Until the score is flat


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([0.5], True), ([0.5, 0.6, 0.6, 0.601], False), ([0.5, 0.501, 0.6], True), ([0.9, 0.5, 0.89], False)],
)
def test_a_run_is_still_rising_where_its_last_gain_is_no_two_evaluations_old(scores, expected):
    assert is_rising(scores, toy(until_flat={"patience": 2, "gain": 0.01}).until_flat) is expected


@pytest.mark.parametrize("has_validation", [False, True])
def test_runs_end_when_they_are_flat_and_keep_their_best(tmp_path, has_validation):
    """On the data's validation rows, else on a tenth of the training rows; the table says which were still rising."""
    folder = write_text_data(tmp_path / "colours")
    if has_validation:
        write_jsonl(folder / "validation.jsonl", read_rows(folder / "train.jsonl")[:8])
    fields = {**TEXT, "tasks": [{"data": str(folder)}], "schemes": ["none"], "test_lengths": [24]}
    rule = {"every": 2, "patience": 2, "gain": 0.9, "least": 1, "most": 40}
    late = {**rule, "least": 9, "most": 41}
    still = {"every": 2, "patience": 3, "gain": 0, "least": 1, "most": 4}
    for ending in (rule, late, still):
        plan = toy(**fields, until_flat=ending)
        results = tmp_path / str(ending["most"])
        assert execute(plan, results, console=quiet()).failed == {}
        run = read_run(results, "colours-none-seed0")
        if ending is still:
            assert (run["steps"], run["rising"]) == (4, 1)
            assert "| 4, 1 of 1 |" in Comparison(results).report().read_text()
        else:  # no rise is as large as .9
            assert (run["steps"], run["rising"]) == (10 if ending is late else 6, 0)
    splits = TaskData(plan, plan.tasks[0]).training_splits(plan.runs()[0])
    assert [*splits] == ["train", *["validation"] * has_validation]
    with pytest.raises(UserError, match="options can't set 'epochs': until_flat says when runs end"):
        toy(**{**fields, "until_flat": rule, "options": {**SMALL, "epochs": 1}})


# From pretrained weights


def test_texts_that_a_checkpoint_was_trained_on_are_said(tmp_path, caplog):
    folder, tokenizer = write_text_data(tmp_path / "colours"), make_tokenizer()
    PosEncForSequenceClassification(PosEncConfig(vocab_size=len(tokenizer), **SIZES)).save_pretrained(
        tmp_path / "start"
    )
    tokenizer.save_pretrained(tmp_path / "start")
    marks = marks_of([entry["text"] for entry in read_rows(folder / "test.jsonl")[:3]])
    np.save(tmp_path / "start" / "_trained_on.npy", np.array(marks, np.uint64))
    plan = toy(tasks=[{"data": str(folder)}], pretrained=str(tmp_path / "start"), options={})
    TaskData(plan, plan.tasks[0]).check()
    assert "The task 'colours': 3 of 40 test texts also in the training data" in caplog.text


@pytest.mark.slow
def test_pretrained_checkpoints_are_the_start(tmp_path):
    tokenizer = make_tokenizer()
    for scheme in ("none", "rope"):
        config = PosEncConfig(vocab_size=len(tokenizer), position_embedding_type=scheme, **SIZES)
        PosEncForSequenceClassification(config).save_pretrained(tmp_path / scheme)
        tokenizer.save_pretrained(tmp_path / scheme)
    options = {"batch_size": 8, "device": "cpu", "max_steps": 2}
    plan = toy(pretrained=str(tmp_path / "{scheme}"), options=options)
    assert execute(plan, tmp_path / "results", keep_models=True, console=quiet()).failed == {}
    made = PosEncConfig.from_pretrained(tmp_path / "results" / "models" / "probes-rope-seed0")
    assert made.num_hidden_layers == 1
    shutil.copytree(tmp_path / "none", tmp_path / "wrong" / "rope")
    with pytest.raises(UserError, match=r"/rope' has the scheme 'none', not 'rope'"):
        toy(pretrained=str(tmp_path / "wrong" / "{scheme}"), schemes=["rope"], options=options)


@pytest.mark.slow
def test_one_pretrained_checkpoint_is_converted_to_each_scheme(tmp_path):
    tokenizer = make_tokenizer()
    bert = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **SIZES))
    bert.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    options = {"batch_size": 8, "device": "cpu", "max_steps": 1, "learning_rate": 1e-9}
    plan = toy(pretrained=str(tmp_path / "bert"), schemes=["learned", "rope"], options=options)
    assert execute(plan, tmp_path / "results", keep_models=True, console=quiet()).failed == {}
    for scheme in plan.schemes:
        made = hf_posenc.PosEncModel.from_pretrained(tmp_path / "results" / "models" / f"probes-{scheme}-seed0")
        assert made.config.position_embedding_type == scheme
        words = made.get_input_embeddings().weight
        torch.testing.assert_close(words[5:], bert.get_input_embeddings().weight[5:])  # [CLS] may take its place in
    short = {"pretrained": str(tmp_path / "bert"), "schemes": ["learned"], "train_length": 48, "options": options}
    with pytest.raises(UserError, match="^train_length=48 is too long: 'learned' has 40 positions"):
        hf_posenc.compare(plan={**TOY, **short}, output=tmp_path / "long")
    torch.nn.init.normal_(bert.embeddings.word_embeddings.weight)
    bert.save_pretrained(tmp_path / "bert")
    with pytest.raises(UserError, match="the checkpoint '.*model.safetensors', which has changed since the first runs"):
        execute(plan, tmp_path / "results", console=quiet())
    with pytest.raises(UserError, match="'nowhere' is no folder, and couldn't be had from the Hub"):
        toy(pretrained="nowhere", options=options)


# A scheme of one's own


@pytest.fixture
def forget():
    """What a process has registered and imported ends with it."""
    before, modules = dict(SCHEMES), set(sys.modules)

    def end():
        SCHEMES.clear()
        SCHEMES.update(before)
        for name in sys.modules.keys() - modules:
            if name.startswith("scheme_files_"):
                del sys.modules[name]

    yield end
    end()


@pytest.fixture
def own(tmp_path):
    """A copy of the example, to be edited."""
    return Path(shutil.copy(EXAMPLE, tmp_path / "recency.py"))


@pytest.mark.slow
def test_a_scheme_from_a_file_is_compared(tmp_path, own, forget, run):
    (tmp_path / "plan.yaml").write_text(json.dumps({**TOY, "schemes": ["none"]}))  # JSON is YAML
    results, words = tmp_path / "out", ["--schemes", "none,recency", "--scheme-file", own]
    code, _, err = run("compare", "-o", results, "--plan", tmp_path / "plan.yaml", *words)
    assert code == 0, err
    none, recency = (read_run(results, f"probes-{name}-seed0") for name in ("none", "recency"))
    assert recency["parameters"] - none["parameters"] == 2
    forget()
    own.unlink()
    assert len(Comparison(results).table) > 8  # needs neither the file nor the class


def test_runs_of_an_edited_file_are_refused(tmp_path, own, forget, pretended):
    fields = {"schemes": ["none", "recency"], "scheme_files": [str(own)]}
    execute(toy(**fields), tmp_path / "out", console=quiet())
    assert len(execute(toy(**fields), tmp_path / "out", console=quiet()).skipped) == 2  # the same again
    own.write_text(own.read_text() + "# edited\n")
    with pytest.raises(UserError, match="has changed since this process read it. Start a new one"):
        toy(**fields)
    forget()
    edited = toy(**fields)
    with pytest.raises(UserError, match="the scheme file '.*recency.py', which has changed since the first runs"):
        execute(edited, tmp_path / "out", console=quiet())
    # Without the scheme the folder can be used, and keeps what it says of it.
    execute(toy(schemes=["t5"]), tmp_path / "out", console=quiet())
    kept = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert (kept["schemes"], kept["scheme_files"]) == (["none", "recency", "t5"], [own.name])


def test_a_checkpoint_of_ones_own_scheme_needs_the_file(tmp_path, own, forget):
    fields = {"schemes": ["recency"], "pretrained": str(tmp_path / "{scheme}"), "options": {}}
    register_scheme(own, "recency")
    PosEncModel(PosEncConfig.from_size("tiny", position_embedding_type="recency")).save_pretrained(tmp_path / "recency")
    assert toy(**fields, scheme_files=[str(own)]).schemes == ("recency",)
    forget()
    with pytest.raises(UserError, match="'recency'"):
        toy(**fields)


def test_a_file_whose_scheme_has_no_clear_name_is_refused_before_any_run(tmp_path, forget, own):
    with pytest.raises(UserError, match="it isn't clear what to call Recency"):
        toy(schemes=["none", "recency", "other"], scheme_files=[str(own)])


# A learning rate for each scheme


def test_a_rate_that_the_plan_leaves_open_is_that_of_train(tmp_path):
    plan = toy(options={"set": {"hidden_size": 512}, "device": "cpu"})
    run = plan.runs()[1]
    assert run.scheme == "rope"
    assert rate_of_run(plan, run) == 5e-4  # of an encoder so wide
    assert rate_of_run(toy(), replace(run, factor=3.0)) == 3e-3
    started = replace(toy(options={}), pretrained=f"{tmp_path}/{{scheme}}")
    wide = PosEncConfig(hidden_size=768, num_attention_heads=12, num_hidden_layers=1, vocab_size=9)
    PosEncModel(wide).save_pretrained(tmp_path / "rope")
    assert rate_of_run(started, run) == 5e-5


@pytest.mark.slow  # six runs
def test_each_scheme_gets_its_rate_from_trials_that_are_not_reported(tmp_path):
    plan = toy(search=[0.5, 2], test_lengths=[32], tasks=[{"data": "probes", "probes": ["order_near"]}])
    made = execute(plan, tmp_path, console=quiet())
    assert made.failed == {}
    trials = [trial.name for scheme in plan.schemes for trial in plan.trials(plan.tasks[0], scheme)]
    assert sorted(path.stem for path in (tmp_path / "trials").iterdir()) == sorted(trials)
    assert len(made.done) == len(trials) + 2
    for scheme in plan.schemes:
        of_scheme = [json.loads(path.read_text()) for path in (tmp_path / "trials").glob(f"probes-{scheme}-*")]
        scores = {trial["rows"][0]["rate"]: trial["rows"][0]["score"] for trial in of_scheme}
        assert scores.keys() == {0.0005, 0.002}
        assert scores[read_run(tmp_path, f"probes-{scheme}-seed0")["rate"]] == max(scores.values())
    data = TaskData(plan, plan.tasks[0])
    first, second = (data.training_rows(run).cells("text") for run in (plan.runs()[0], plan.work()[0]))
    assert first != second
    assert execute(plan, tmp_path, console=quiet()).done == []
    assert set(Comparison(tmp_path).table["seed"].dropna()) == {0}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((0.5, 0.7, 0.6), 0.001),
        ((0.5, 0.7, 0.9), 0.003),
        ((0.7, 0.5, 0.7), 0.003),
        ((np.nan, 0.1, 0.1), 0.001),
        ((0.5, 0.5, "failed"), "1 trial of its learning rate failed."),
        (("diverged",) * 3, 0.0003),
    ],
)
def test_the_best_trial_wins_and_of_equals_the_rate_that_is_nearer(tmp_path, scores, expected, pretended, monkeypatch):
    by_factor = dict(zip((0.3, 1, 3), scores, strict=True))

    def score(data, run, *given):
        if run.factor is None:
            return done_run(data.plan, run, rate=given[2])
        tried = by_factor[run.factor]
        if tried == "failed":
            raise RuntimeError("it rained")
        rate = round(1e-3 * run.factor, 9)
        ended = {"diverged": "it rose"} if tried == "diverged" else {}
        return done_run(data.plan, run, [row(data.plan, run, None if ended else tried)], rate=rate, **ended)

    monkeypatch.setattr(engine, "run_one", score)
    failed = execute(toy(search=[0.3, 1, 3], schemes=["rope"]), tmp_path, console=quiet()).failed
    if isinstance(expected, float):
        assert read_run(tmp_path, "probes-rope-seed0")["rate"] == expected
    else:
        assert failed["probes-rope-seed0"] == expected


def test_a_trial_that_diverged_is_the_worst_rate_and_fails_no_run(tmp_path, pretended, monkeypatch):
    def diverges(data, run, *given):
        if run.factor == 2:
            return done_run(data.plan, run, [{"score": None}], rate=0.002, diverged="it rose")
        return done_run(data.plan, run, rate=0.001 if run.factor else given[2])

    monkeypatch.setattr(engine, "run_one", diverges)
    for tried in (3, 0):
        made = execute(toy(search=[1, 2], schemes=["rope"]), tmp_path, console=quiet())
        assert (made.failed, len(made.done)) == ({}, tried)
    assert read_run(tmp_path, "probes-rope-seed0")["rate"] == 0.001


@pytest.mark.parametrize(
    ("rate", "initial", "steps", "reason"),
    [
        (0.001, 0.05, 40, None),
        (1.0, 0.05, 40, "a training loss above its start"),
        (1.0, 0.05, 39, None),  # by two single batches nobody can tell
        (0.001, 1e25, 4, "a loss that isn't finite"),
    ],
)
def test_a_run_that_diverged_has_the_majoritys_score(tmp_path, rate, initial, steps, reason):
    """And not one whose loss is a little higher, as chance has it."""
    fields = {"learning_rate": rate, "max_steps": steps, "set": {**SMALL["set"], "initializer_range": initial}}
    plan = toy(schemes=["rope"], test_lengths=[32], options={**SMALL, **fields})
    assert execute(plan, tmp_path, console=quiet()).failed == {}
    run = read_run(tmp_path, "probes-rope-seed0")
    assert [(entry["score"], entry.get("diverged")) for entry in run["rows"]] == [(0.5, reason)] * 2
    assert (run.get("last_loss", 0) > run.get("first_loss", 0)) == (reason != "a loss that isn't finite")
    made = Comparison(tmp_path)
    assert (set(made.table["diverged"].dropna()), made.missing) == ({reason} - {None}, [])
    said = "Runs that diverged count with the majority's score: `rope` on probes (1 with "
    assert (f"{said}{reason})." in made.report().read_text()) == (reason is not None)


@pytest.mark.parametrize("has_validation", [False, True])
def test_rates_are_chosen_on_what_is_not_reported(tmp_path, has_validation):
    """A validation split beside a test split; else a tenth that is held out of the training rows."""
    folder = write_text_data(tmp_path / "colours")
    if has_validation:
        write_jsonl(folder / "validation.jsonl", read_rows(folder / "train.jsonl")[:8])
    plan = toy(tasks=[{"data": str(folder)}], train_examples=60, search=[1, 2], train_length=32, test_examples=None)
    (task,) = plan.tasks
    data = TaskData(plan, task)
    run = plan.runs()[0]
    every, tried = (data.training_rows(replace(run, factor=factor)).cells("text") for factor in (None, 2.0))
    tokenizer = train_tokenizer(every, vocab_size=400)
    (part,) = data.test_parts(tokenizer, ("bad", "good"), trial=True)
    if has_validation:
        assert (tried == every, len(part.dataset)) == (True, 8)
        return
    held_out = data.trial_splits["test"].cells("text")
    assert (len(every), len(tried), plan.options_of(task)["max_rows"]) == (64, 54, 60)
    assert not Counter(tried + held_out) - Counter(every)
    assert (part.length, len(part.dataset)) == (32, 6)
