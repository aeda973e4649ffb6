"""A learning rate for each scheme is chosen on seeds and data that aren't reported, with the same budget for all."""

import json
from dataclasses import replace

import pytest
from comparison_harness import TOY, done_run, quiet, read_run, toy, write_text_data

from hf_posenc import PosEncConfig
from hf_posenc.comparison import execute, executor, read_plan, tasks
from hf_posenc.comparison.executor import choose_rate
from hf_posenc.comparison.plan import DEVELOPMENT_SEED, SEARCH_FACTORS, PlannedRun
from hf_posenc.comparison.report import make_report
from hf_posenc.comparison.results_folder import load_runs, record_plan
from hf_posenc.comparison.run import learning_rate, to_json
from hf_posenc.comparison.study import Study
from hf_posenc.comparison.tasks import development_files, training_options
from hf_posenc.data.reading import read_file
from hf_posenc.data.sources import read
from hf_posenc.data.tokenizer import train_tokenizer
from hf_posenc.errors import Diverged, UserError
from hf_posenc.files import write_json
from hf_posenc.options import Options


def test_a_rate_that_the_plan_leaves_open_is_that_of_train(tmp_path):
    plan = toy(options={"set": {"hidden_size": 512}, "device": "cpu"})
    run = PlannedRun(plan.tasks[0], "rope", 0)
    assert learning_rate(plan, run, tmp_path) == 5e-4  # of an encoder so wide
    assert learning_rate(toy(), replace(run, factor=3.0), tmp_path) == 3e-3
    started = replace(plan, pretrained="checkpoint/{scheme}".replace("checkpoint", str(tmp_path)))
    PosEncConfig(hidden_size=768, num_attention_heads=12).save_pretrained(tmp_path / "rope")
    assert learning_rate(started, run, tmp_path) == 5e-5


@pytest.mark.slow  # nine runs
def test_each_scheme_gets_its_rate_from_trials_that_are_not_reported(tmp_path):
    plan = toy(search=[0.5, 2], test_lengths=[32], tasks=[{"kind": "probes", "probes": ["order_near"]}])
    made = execute(plan, tmp_path, console=quiet())
    assert made.failed == {}
    trials = [trial.name for scheme in plan.schemes for trial in plan.trials(plan.tasks[0], scheme)]
    assert sorted(path.name for path in (tmp_path / "search").iterdir()) == sorted(trials)
    assert len(made.done) == len(trials) + 2
    scores, data = {}, set()
    for name in trials:
        trial = json.loads((tmp_path / "search" / name / "run.json").read_text())
        scores[trial["scheme"], trial["learning_rate"]] = trial["tests"][0]["value"]
        data.add(trial["tests"][0]["data"])
        assert [(test["length"], test["part"]) for test in trial["tests"]] == [(32, "order_near")]
    assert {rate for _, rate in scores} == {0.0005, 0.002}
    for scheme in plan.schemes:
        run = read_run(tmp_path, f"probes-{scheme}-seed0")
        assert scores[scheme, run["learning_rate"]] == max(scores[scheme, rate] for rate in (0.0005, 0.002))
        assert run["search"]["seed"] == DEVELOPMENT_SEED
        assert run["search"]["scores"].keys() == {"0.0005", "0.002"}
        assert run["search"]["seconds"] > 0
        assert run["tests"][0]["data"] not in data  # other examples
    assert len(data) == 1  # the same for every scheme and rate
    first, second = ((tmp_path / "data" / f"probes-seed{seed}.jsonl").read_text() for seed in (0, DEVELOPMENT_SEED))
    assert first != second
    assert execute(plan, tmp_path, console=quiet()).done == []

    texts = list(map(str, make_report(Study.read(tmp_path))))
    assert any(text.startswith("**A learning rate for each scheme**: the best of 2") for text in texts)
    assert any("At the edge of what was tried" in text for text in texts)


def trial_result(plan, trial, value, status="done"):
    test = {"part": "order_near", "length": 32, "examples": 2, "metric": "accuracy", "value": value, "units": {}}
    rate = round(1e-3 * (trial.factor or 1), 9)
    return done_run(plan, trial, [test], status=status, error="it rained", learning_rate=rate, seconds=2.0)


@pytest.mark.parametrize(
    ("values", "rate"),
    [((0.5, 0.7, 0.6), 0.001), ((0.5, 0.7, 0.9), 0.003), ((0.7, 0.5, 0.7), 0.003), ((float("nan"), 0.1, 0.1), 0.001)],
)
def test_the_best_trial_wins_and_of_equals_the_rate_that_is_nearer(tmp_path, values, rate):
    plan = toy(search=SEARCH_FACTORS)
    run = PlannedRun(plan.tasks[0], "rope", 0)
    for trial, value in zip(plan.trials(run.task, run.scheme), values, strict=True):
        write_json(tmp_path / "search" / trial.name / "run.json", trial_result(plan, trial, value))
    chosen = choose_rate(plan, run, tmp_path)
    assert chosen["learning_rate"] == rate
    assert chosen["search"]["seconds"] == 6


def test_a_trial_that_failed_fails_the_run_and_says_why(tmp_path):
    plan = toy(search=[1, 2])
    run = PlannedRun(plan.tasks[0], "rope", 0)
    for trial, status in zip(plan.trials(run.task, run.scheme), ("done", "failed"), strict=True):
        write_json(tmp_path / "search" / trial.name / "run.json", trial_result(plan, trial, 0.5, status))
    with pytest.raises(UserError, match="1 trials of its learning rate are missing: it rained"):
        choose_rate(plan, run, tmp_path)


def test_a_trial_that_diverged_is_the_worst_rate_and_fails_no_run(tmp_path, monkeypatch):
    def diverges(plan, run, *_):
        if run.factor == 2:
            raise Diverged("no numbers any more")
        return {**trial_result(plan, run, 0.5), "rate": _[-1]}

    monkeypatch.setattr(executor, "run_one", diverges)
    monkeypatch.setattr(executor, "load_runs", lambda *_: [])
    for tried in (3, 0):
        made = execute(toy(search=[1, 2], schemes=["rope"]), tmp_path, console=quiet())
        assert made.failed == {}
        assert len(made.done) == tried
    rate = read_run(tmp_path, "probes-rope-seed0")["rate"]
    assert rate["learning_rate"] == 0.001
    assert rate["search"]["scores"] == {"0.001": 0.5, "0.002": None}


def test_a_run_holds_no_number_that_json_lacks():
    text = to_json({"a": float("nan"), "tests": [{"value": float("inf")}]})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "tests": [{"value": None}]}


def texts_of(tmp_path, plan, factor):
    options = training_options(plan, PlannedRun(plan.tasks[0], "none", 0, factor), tmp_path)
    return read(Options.of(**options))["train"]["text"][:]


def development_texts(tmp_path, plan):
    tokenizer = train_tokenizer(texts_of(tmp_path, plan, None), vocab_size=400)
    arguments = (plan, plan.tasks[0], tokenizer, ("bad", "good"), "single_label_classification")
    return list(tasks.test_parts(*arguments, tmp_path))


def test_a_tenth_is_held_out_of_the_training_rows_where_nothing_else_is_unreported(tmp_path):
    data = write_text_data(tmp_path / "colours")
    plan = read_plan({**TOY, "tasks": [{"data": str(data)}], "train_examples": 60, "search": [1, 2]})
    every, tried = texts_of(tmp_path, plan, None), texts_of(tmp_path, plan, 2.0)
    assert (len(every), len(tried)) == (64, 54)  # the option max_rows keeps the first 60
    held_out = read_file(development_files(plan, plan.tasks[0], tmp_path)[1])["text"][:]
    assert sorted(tried + held_out) == sorted(every[:60])
    (part,) = development_texts(tmp_path, plan)
    assert (part.length, len(part.dataset)) == (32, 6)


def test_a_validation_split_that_is_not_reported_is_what_rates_are_chosen_on(tmp_path):
    data = write_text_data(tmp_path / "colours")
    (data / "validation.jsonl").write_text("".join((data / "train.jsonl").read_text().splitlines(True)[:8]))
    plan = read_plan({**TOY, "tasks": [{"data": str(data)}], "search": [1, 2]})
    assert development_files(plan, plan.tasks[0], tmp_path) is None
    assert texts_of(tmp_path, plan, 2.0) == texts_of(tmp_path, plan, None)
    (part,) = development_texts(tmp_path, plan)
    assert len(part.dataset) == 8


def test_runs_with_and_without_a_search_do_not_mix(tmp_path):
    record_plan(toy(), tmp_path)
    assert "search" not in json.loads((tmp_path / "plan.json").read_text())
    with pytest.raises(UserError, match="it differs in search .None there"):
        record_plan(toy(search=[1, 2]), tmp_path)


def test_runs_of_one_scheme_at_two_rates_are_refused(tmp_path):
    plan = toy(search=[1, 2], seeds=2, schemes=["rope"])
    write_json(tmp_path / "plan.json", plan.to_dict())
    for run in plan.runs():
        search = {"seed": DEVELOPMENT_SEED, "scores": {"0.001": 0.5}, "seconds": 1.0}
        result = done_run(plan, run, learning_rate=0.001 * (1 + run.seed), search=search)
        write_json(tmp_path / "runs" / run.name / "run.json", result)
    with pytest.raises(UserError, match=r"learned at another rate .*\(0.002 and 0.001\): the rate was searched"):
        load_runs(tmp_path, plan)
