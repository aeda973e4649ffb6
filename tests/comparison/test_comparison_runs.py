"""Runs: only positions change, what is done stays done, and what fails stays alone."""

import errno
import functools
import json
import os
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from common import SCHEMES
from comparison_harness import (
    TEXT,
    TOY,
    change_json,
    done_run,
    printed,
    quiet,
    read_rows,
    read_run,
    toy,
    write_rows,
    write_text_data,
)
from filelock import FileLock
from idle_scheme import Idle
from transformers import BertConfig, BertModel, set_seed

import hf_posenc
from hf_posenc import PosEncConfig, PosEncForSequenceClassification
from hf_posenc.comparison import execute, tasks
from hf_posenc.comparison import run as run_module
from hf_posenc.comparison.plan import PlannedRun
from hf_posenc.comparison.plan_file import read_plan
from hf_posenc.comparison.probes import make_tokenizer
from hf_posenc.comparison.results_folder import load_plan, load_runs, record_plan
from hf_posenc.comparison.tasks import training_options
from hf_posenc.data.preparing import prepare
from hf_posenc.data.reading import read_file
from hf_posenc.data.sources import read
from hf_posenc.data.tokenizer import train_tokenizer
from hf_posenc.errors import Interrupted, UserError
from hf_posenc.files import write_json
from hf_posenc.finetuning.start import check_start
from hf_posenc.finetuning.start import start as begin
from hf_posenc.machine import commit
from hf_posenc.options import Options
from hf_posenc.training.trainer import Stop


def test_all_weights_but_the_schemes_are_equal_at_the_start(tmp_path):
    plan = toy(schemes=[*SCHEMES, "tupe+t5"], baseline="none")
    (task,) = plan.tasks

    def start(scheme, seed):
        options = {**plan.options_of(task), **training_options(plan, PlannedRun(task, "none", seed), tmp_path)}
        options = Options.of(**options, seed=seed, scheme=scheme)
        set_seed(seed)
        _, model, _ = begin(options, prepare(read(options), options), check_start(options))
        return {name: value for name, value in model.state_dict().items() if ".position." not in name}

    for seed in (0, 1):
        baseline = start("none", seed)
        assert sum(value.numel() for value in baseline.values()) > 5000
        for scheme in plan.schemes if seed == 0 else ("fire",):
            other = start(scheme, seed)
            assert other.keys() == baseline.keys()
            assert all(torch.equal(other[name], value) for name, value in baseline.items()), scheme
    last = "classifier.out_proj.weight"
    assert not torch.equal(start("none", 0)[last], start("none", 1)[last])


@pytest.mark.slow
def test_data_order_and_budget_are_equal_too(tmp_path):
    """A scheme that does nothing, but draws random numbers for its weights, is `none` to the last digit."""
    if "test_idle" not in hf_posenc.POSITIONS:
        hf_posenc.register_position("test_idle", Idle)
    plan = toy(schemes=["none", "test_idle"])
    assert execute(plan, tmp_path, console=quiet()).failed == {}
    none, idle = (read_run(tmp_path, f"probes-{scheme}-seed0") for scheme in plan.schemes)
    assert len(none["loss"]) == 8
    assert none["loss"] == idle["loss"]
    assert none["tests"][0]["units"] == idle["tests"][0]["units"]
    assert idle["positional_parameters"] == 32 * 32 + 32
    for result in (none, idle):
        for test in result["tests"]:
            # Each pair has one right answer, whatever was learned: exactly one half, at every length.
            assert test["units"] == {"right": "1x10", "of": "2x10"}
            assert test["value"] == 0.5


def test_a_run_says_all_about_itself(tmp_path, monkeypatch, draw_run):
    monkeypatch.setattr(run_module, "_draw", draw_run)
    plan = toy(schemes=["learned"], scheme_arguments={"learned": {"std": 0.1}})
    made, make = [], os.makedirs
    monkeypatch.setattr(os, "makedirs", lambda path, *args, **kw: (made.append(Path(path)), make(path, *args, **kw)))
    execute(plan, tmp_path, console=quiet())
    # The Trainer makes its folder even where it writes nothing.
    writable = (tmp_path, Path(tempfile.gettempdir()), Path.home())
    assert made
    assert not [path for path in made if not any(path.absolute().is_relative_to(folder) for folder in writable)]
    run = read_run(tmp_path, "probes-learned-seed0")
    assert (run["status"], run["steps"], run["max_length"]) == ("done", 8, 32)
    tests = [("order_near", 32), ("parity", 32), ("order_near", 48), ("parity", 48)]
    assert [(test["part"], test["length"]) for test in run["tests"]] == tests
    assert run["tests"][2]["skipped"] == "learned has 32 positions"
    assert run["tests"][0]["metrics"].keys() == {"accuracy", "macro_f1", "matthews_correlation"}
    assert run["parameters"] > run["positional_parameters"] == 32 * 32
    assert run["config"]["position_embedding_kwargs"]["std"] == 0.1
    assert run["settings"]["train_length"] == 32
    assert run["versions"]["torch"]
    assert run["commit"] == commit()
    assert run["machine"]["threads"] >= 1
    assert run["resumed"] is False
    folder = tmp_path / "runs" / "probes-learned-seed0"
    assert {path.name for path in folder.iterdir()} == {"run.json", "learned.png"}


def test_training_data_differ_by_seed_and_test_data_do_not(tmp_path):
    plan = toy(seeds=2, schemes=["none"])
    paths = [training_options(plan, run, tmp_path)["data"] for run in plan.runs()]
    first, second = (read_file(path) for path in paths)
    assert len(first) == len(second) == 64
    assert {*first["text"]} != {*second["text"]}
    before = [(tmp_path / "probes-seed0.jsonl").stat().st_mtime_ns]
    training_options(plan, plan.runs()[0], tmp_path)
    assert [(tmp_path / "probes-seed0.jsonl").stat().st_mtime_ns] == before


def test_what_is_done_is_skipped_and_what_failed_is_tried_again(tmp_path, pretended):
    broken, made = pretended
    broken["rope"] = ValueError("rope  has\nno bananas")
    plan, console = toy(schemes=["none", "rope", "t5"], seeds=2), quiet()
    first = execute(plan, tmp_path, console=console)
    assert len(first.done) == 4
    assert first.failed == dict.fromkeys(["probes-rope-seed0", "probes-rope-seed1"], "rope has no bananas")
    failure = {"task": "probes", "scheme": "rope", "seed": 0, "status": "failed", "error": "rope has no bananas"}
    settings = json.loads(json.dumps(plan.settings("rope", plan.tasks[0])))
    assert read_run(tmp_path, "probes-rope-seed0") == {**failure, "settings": settings}
    assert re.search(r"\[2 of 6\] probes-rope-seed0, about \d+ s left", printed(console))
    assert "failed: rope has no bananas" in printed(console)
    del broken["rope"], made[:]
    again = execute(plan, tmp_path, console=console)
    assert again.done == made == ["probes-rope-seed0", "probes-rope-seed1"]
    assert len(again.skipped) == 4
    assert "4 of 6 runs are done already" in printed(console)


@pytest.mark.promise("Files", "Processes that compare in one folder share its runs, each trained once")
def test_processes_on_one_folder_share_its_runs(tmp_path, pretended):
    _, made = pretended
    plan = toy(schemes=["none", "rope", "t5"])
    record_plan(plan, tmp_path / "first")
    (tmp_path / "first" / ".locks").mkdir()
    console = quiet()
    with FileLock(tmp_path / "first" / ".locks" / "probes-rope-seed0.lock"):
        outcome = execute(plan, tmp_path / "first", console=console)
    assert (outcome.elsewhere, outcome.failed) == (["probes-rope-seed0"], {})
    assert outcome.done == made == ["probes-none-seed0", "probes-t5-seed0"]
    assert "another process is making it" in printed(console)
    assert "One seed gives no intervals" in printed(console)
    again = execute(plan, tmp_path / "first", console=console)
    assert (again.done, again.elsewhere) == (["probes-rope-seed0"], [])


def test_a_run_that_another_process_made_in_the_meantime_is_not_made_again(tmp_path, monkeypatch):
    plan = toy(schemes=["none", "rope"])

    def pretend(plan, run, folder, data_folder, chosen=None):
        other = plan.runs()[1]
        write_json(tmp_path / "runs" / other.name / "run.json", done_run(plan, other))
        return done_run(plan, run)

    monkeypatch.setattr("hf_posenc.comparison.executor.run_one", pretend)
    outcome = execute(plan, tmp_path, console=quiet())
    assert (outcome.done, outcome.skipped) == (["probes-none-seed0"], ["probes-rope-seed0"])


def test_without_locks_a_process_makes_all_runs(tmp_path, pretended, monkeypatch):
    def none_here(*_):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr("hf_posenc.comparison.executor.FileLock", none_here)
    assert len(execute(toy(schemes=["none", "rope"]), tmp_path, console=quiet()).done) == 2


def test_a_full_disk_costs_one_run_and_nothing_else(tmp_path, pretended, monkeypatch):
    broken, _ = pretended
    broken["rope"] = OSError(errno.ENOSPC, "No space left on device")

    def no_room(path, value):
        if "probes-" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))

    monkeypatch.setattr("hf_posenc.comparison.executor.write_json", no_room)
    outcome = execute(toy(schemes=["none", "rope", "t5"]), tmp_path, console=quiet())
    assert outcome.done == ["probes-none-seed0", "probes-t5-seed0"]
    assert "No space left on device" in outcome.failed["probes-rope-seed0"]
    assert read_run(tmp_path, "probes-none-seed0")["status"] == "done"
    broken.clear()
    assert execute(toy(schemes=["none", "rope", "t5"]), tmp_path, console=quiet()).done == ["probes-rope-seed0"]


def test_a_result_that_has_no_room_gets_that_of_the_checkpoints(tmp_path, monkeypatch):
    work = tmp_path / "model"
    work.mkdir()
    write = run_module.write_text

    def no_room(path, text):
        if work.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    monkeypatch.setattr(run_module, "write_text", no_room)
    run_module.finish(tmp_path, {"status": "done"})
    assert json.loads((tmp_path / "run.json").read_text()) == {"status": "done"}


def test_a_folder_keeps_its_baseline_unless_one_is_named(tmp_path, pretended):
    steps = (("none", None, "none"), ("t5", None, "none"), ("t5", "t5", "t5"), ("none", None, "t5"))
    for scheme, baseline, kept in steps:
        execute(toy(schemes=[scheme], baseline=baseline), tmp_path, console=quiet())
        assert load_plan(tmp_path).baseline == kept
    assert load_plan(tmp_path).schemes == ("none", "t5")


def test_runs_of_another_task_or_of_other_data_do_not_mix(tmp_path, pretended):
    execute(toy(), tmp_path / "a", console=quiet())
    execute(toy(seeds=[1], tasks=[{"kind": "probes", "train_examples": 28}]), tmp_path / "b", console=quiet())
    name = "probes-none-seed1"
    shutil.copytree(tmp_path / "b" / "runs" / name, tmp_path / "a" / "runs" / name)
    with pytest.raises(UserError, match=f"{name}' is a run of another plan than plan.json says: it differs in task"):
        execute(toy(seeds=2), tmp_path / "a", console=quiet())
    shutil.rmtree(tmp_path / "a" / "runs" / name)
    plan = toy(seeds=2)
    for run, data in zip(plan.runs(), ("abc", "abd") * 2, strict=False):
        test = {"part": "order_near", "length": 32, "examples": 2, "data": data, "skipped": "too long"}
        write_json(tmp_path / "a" / "runs" / run.name / "run.json", done_run(plan, run, [test]))
    with pytest.raises(UserError, match="was tested on other examples of 'order_near' than .*the data has changed"):
        execute(plan, tmp_path / "a", console=quiet())


def test_a_folder_of_another_plan_or_of_something_else_is_refused(tmp_path, pretended):
    execute(toy(), tmp_path / "a", console=quiet())
    with pytest.raises(UserError, match="'.*a' holds another plan: it differs in train_length .32 there, 40 here."):
        execute(toy(train_length=40), tmp_path / "a", console=quiet())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("important")
    with pytest.raises(UserError, match=r"holds no results of a comparison, but thesis.tex. Name a new folder"):
        execute(toy(), tmp_path / "b", console=quiet())
    with pytest.raises(UserError, match="can't be written to"):
        execute(toy(), tmp_path / "b" / "thesis.tex", console=quiet())


@pytest.mark.promise("Resuming", "An interrupted comparison resumes and ends in the same results")
def test_an_interrupted_run_goes_on_to_the_same_end(tmp_path, monkeypatch):
    plan = toy(schemes=["rope"])
    execute(plan, tmp_path / "whole", console=quiet())

    def stop(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Stop, "on_step_end", stop)
        with pytest.raises(Interrupted, match="probes-rope-seed0 keeps .* The same command goes on"):
            execute(plan, tmp_path / "cut", console=quiet())
    work = tmp_path / "cut" / "runs" / "probes-rope-seed0" / "model"
    assert [path.name for path in work.glob("checkpoint-*")] == ["checkpoint-2"]
    assert execute(plan, tmp_path / "cut", console=quiet()).done == ["probes-rope-seed0"]
    whole, cut = (read_run(tmp_path / name, "probes-rope-seed0") for name in ("whole", "cut"))
    assert (whole["resumed"], cut["resumed"]) == (False, True)
    assert cut["loss"] == whole["loss"]
    assert [test.get("units") for test in cut["tests"]] == [test.get("units") for test in whole["tests"]]
    assert not work.exists()


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (None, 2)])
def test_a_run_computes_in_the_threads_of_the_plan_and_what_follows_in_those_of_before(
    tmp_path, monkeypatch, threads, expected, request
):
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)
    seen = []
    monkeypatch.setattr("hf_posenc.comparison.executor.measure_references", lambda *_: [])
    monkeypatch.setattr("hf_posenc.comparison.executor.run_one", lambda *_: seen.append(torch.get_num_threads()))
    plan = replace(read_plan("quick", tasks=["halves"], schemes=["none"]), threads=threads)
    execute(plan, tmp_path, console=quiet())
    assert (seen, torch.get_num_threads()) == ([expected], 2)


def test_interrupted_baselines_go_on_with_the_next(tmp_path, monkeypatch, capsys):
    plan, seen = read_plan("quick", tasks=["probes", "halves"]), []

    def measure(_, task, *__):
        seen.append(task.name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr("hf_posenc.comparison.executor.measure_references", measure)
    first, second = (task.name for task in plan.tasks)
    with pytest.raises(Interrupted, match=f"before the baselines of {second} is kept. The same command goes on"):
        execute(plan, tmp_path)
    assert [path.stem for path in (tmp_path / "baselines").iterdir()] == [first]
    assert [f"{name}: measuring the baselines" for name in seen] == capsys.readouterr().out.splitlines()
    monkeypatch.setattr("hf_posenc.comparison.executor._attempt", lambda *_: "left out")
    execute(plan, tmp_path)
    assert seen == [first, second, second]


def parts_of(folder, **task):
    """The tests of a task, without a model."""
    plan = toy(**{**TEXT, "tasks": [{"data": str(folder), **task}]})
    texts = [row["text"] for row in read_rows(folder / "train.jsonl")]
    tokenizer = train_tokenizer([*texts, "first second"], model_max_length=512)
    labels = ("bad", "good")
    parts = {}
    for part in tasks.test_parts(plan, plan.tasks[0], tokenizer, labels, "single_label_classification", None):
        parts[part.name, part.length] = (tokenizer.batch_decode(list(part.dataset["input_ids"])), part)
    return parts


def test_a_pair_is_cut_as_in_training(tmp_path):
    """The longer of both: a statement about a long document must stay."""
    folder = write_text_data(tmp_path / "colours")
    for name in ("train", "test"):
        path = folder / f"{name}.jsonl"
        write_rows(path, [{**row, "text_pair": "first second"} for row in read_rows(path)])
    parts = parts_of(folder)
    assert [length for _, length in parts] == [24, 36, 48]
    for (_, length), (texts, part) in parts.items():
        assert part.longest == min(length, 46)
        assert all(text.endswith("first second [SEP]") for text in texts)


def test_some_of_the_tests_are_drawn_from_all_and_groups_stay_whole(tmp_path):
    folder = write_text_data(tmp_path / "colours")
    path = folder / "test.jsonl"
    write_rows(path, sorted(read_rows(path), key=lambda row: row["label"]))
    (_, part), *_ = parts_of(folder, test_examples=20).values()
    assert len(part.dataset) == 20
    assert 5 <= sum(part.dataset["labels"]) <= 15  # the first 20 rows have one label
    (_, part), *_ = parts_of(folder, test_examples=21, group_column="pair").values()
    assert sorted(part.groups) == sorted(2 * list(set(part.groups)))
    assert len(part.groups) == 20
    again = next(iter(parts_of(folder, test_examples=21, group_column="pair").values()))[1]
    other = next(iter(parts_of(folder).values()))[1]
    assert again.entry()["data"] == part.entry()["data"] != other.entry()["data"]


def test_buckets_hold_the_examples_of_all_test_files(tmp_path):
    folder = write_text_data(tmp_path / "colours")
    alone, more = (parts_of(folder, lengths="buckets", **files) for files in ({}, {"extra_tests": "test_long.jsonl"}))
    # Words plus [CLS] and [SEP]: 5 to 43 tokens.
    counts = {part: len(tested.dataset) for part, (_, tested) in alone.items()}
    assert counts == {("colours", 24): 21, ("colours", 36): 12, ("colours", 48): 7}
    assert set(more) == set(alone)
    assert len(more["colours", 24][1].dataset) == len(alone["colours", 24][1].dataset) + 10


def test_a_test_without_examples_fails_and_says_so(tmp_path):
    folder = write_text_data(tmp_path / "colours")
    path = folder / "test.jsonl"
    write_rows(path, [{**row, "text": "good " * 60} for row in read_rows(path)])
    options = {**TOY["options"], "max_steps": 1}
    tasks = [{"data": str(folder), "lengths": "buckets"}]
    plan = toy(**{**TEXT, "tasks": tasks, "schemes": ["none"], "options": options})
    outcome = execute(plan, tmp_path / "results", console=quiet())
    assert "No test example of 'colours' is of one of the lengths [24, 36, 48]" in outcome.failed["colours-none-seed0"]


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.mark.slow
def test_pretrained_checkpoints_are_the_start(tmp_path):
    tokenizer = make_tokenizer()
    for scheme in ("none", "rope"):
        config = PosEncConfig(vocab_size=len(tokenizer), position_embedding_type=scheme, **SIZES)
        PosEncForSequenceClassification(config).save_pretrained(tmp_path / scheme)
        tokenizer.save_pretrained(tmp_path / scheme)
    options = {"batch_size": 8, "device": "cpu", "max_steps": 2}
    plan = toy(pretrained=str(tmp_path / "{scheme}"), options=options)
    assert execute(plan, tmp_path / "results", console=quiet()).failed == {}
    assert read_run(tmp_path / "results", "probes-rope-seed0")["config"]["num_hidden_layers"] == 1
    shutil.copytree(tmp_path / "none", tmp_path / "wrong" / "rope")
    with pytest.raises(UserError, match=r"/rope' has the scheme 'none', not 'rope'"):
        toy(pretrained=str(tmp_path / "wrong" / "{scheme}"), schemes=["rope"])


@pytest.mark.slow
def test_one_pretrained_checkpoint_is_converted_to_each_scheme(tmp_path):
    tokenizer = make_tokenizer()
    bert = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **SIZES))
    bert.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    options = {"batch_size": 8, "device": "cpu", "max_steps": 1, "learning_rate": 1e-9}
    plan = toy(pretrained=str(tmp_path / "bert"), schemes=["learned", "rope"], options=options)
    assert execute(plan, tmp_path / "results", console=quiet()).failed == {}
    for scheme in plan.schemes:
        config = read_run(tmp_path / "results", f"probes-{scheme}-seed0")["config"]
        assert config.get("position_embedding_type", "learned") == scheme
        made = hf_posenc.PosEncModel.from_pretrained(tmp_path / "results" / "data" / "converted" / scheme)
        words = made.get_input_embeddings().weight
        torch.testing.assert_close(words[5:], bert.get_input_embeddings().weight[5:])  # [CLS] may take its place in
    with pytest.raises(UserError, match="'learned' has 40 positions, .* trains at 48 tokens"):
        execute(toy(pretrained=str(tmp_path / "bert"), schemes=["learned"], train_length=48), tmp_path / "long")
    (tmp_path / "results" / "data" / "converted" / "half.tmp").mkdir()  # as a process that was killed leaves it
    execute(plan, tmp_path / "results", console=quiet())
    starts = {read_run(tmp_path / "results", f"probes-{scheme}-seed0")["source_sha256"] for scheme in plan.schemes}
    assert len(starts) == 1
    torch.nn.init.normal_(bert.embeddings.word_embeddings.weight)
    bert.save_pretrained(tmp_path / "bert")
    with pytest.raises(UserError, match="has changed since the first schemes in .*converted"):
        execute(replace(plan, schemes=("none",), baseline="none"), tmp_path / "results", console=quiet())
    change_json(tmp_path / "results" / "runs" / "probes-rope-seed0" / "run.json", source_sha256="0" * 64)
    with pytest.raises(UserError, match="started from other weights than .*probes-learned-seed0"):
        load_runs(tmp_path / "results", plan)
    with pytest.raises(UserError, match="'nowhere' can't be converted to 'none'"):
        execute(toy(pretrained="nowhere"), tmp_path / "other")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"data": "nowhere"}, "'nowhere' can't be read: .* HF_POSENC_DATA can name the folder in which 'nowhere' lies"),
        ({"data": "colours", "extra_tests": "test_short.jsonl"}, "names the test file 'test_short.jsonl'"),
        ({"data": "colours", "extra_tests": "../elsewhere.jsonl"}, "'../elsewhere.jsonl', a test file outside"),
        ({"data": "colours", "extra_tests": "train.jsonl"}, "'train.jsonl': there is a part 'train' already"),
        ({"data": "colours", "extra_tests": "/etc/passwd"}, "names '/etc/passwd', a test file outside"),
        ({"data": "colours", "group_column": "id"}, "names the column 'id'; its data for 'test' has 'text', 'label'"),
        ({"data": "colours", "options": {"text_column": "body"}}, "no column 'body'"),
        ({"data": "colours", "options": {"label_column": "class"}}, "no column 'class'"),
        ({"data": "colours", "group_column": "pair", "extra_tests": "extra.jsonl"}, "its data for 'extra' has"),
        ({"data": "stars"}, "'stars' is regression, which has no accuracy"),
        ({"data": "many"}, "'many' is multi label classification, which has no accuracy"),
        ({"data": "unseen"}, "purple"),
        ({"data": "unlabelled"}, "its data for 'test' has no labels"),
        ({"data": "untested"}, "has nothing to test on"),
        ({"data": "untrained"}, "has no training data"),
    ],
)
def test_wrong_data_is_named_before_any_run(tmp_path, monkeypatch, task, message):
    monkeypatch.setenv("HF_POSENC_DATA", str(tmp_path))
    for name in ("colours", "untested", "untrained"):
        write_text_data(tmp_path / name)
    (tmp_path / "colours" / "extra.jsonl").write_text('{"text": "good f1", "label": "good"}\n')
    changes = {
        "stars": lambda row: {"label": 0.5 + (row["label"] == "good")},
        "many": lambda row: {"label": [row["label"]]},
        "unseen": lambda row: {"label": "purple"},
        "unlabelled": lambda row: {"label": None},
    }
    for name, change in changes.items():
        for path in write_text_data(tmp_path / name).glob("*.jsonl"):
            if path.stem != "train" or name in ("stars", "many"):
                write_rows(path, [{**row, **change(row)} for row in read_rows(path)])
    (tmp_path / "untested" / "test.jsonl").unlink()
    (tmp_path / "untrained" / "train.jsonl").unlink()
    with pytest.raises(UserError, match=message):
        execute(toy(**{**TEXT, "tasks": [task]}), tmp_path / "results", console=quiet())
    assert not (tmp_path / "results").exists()
