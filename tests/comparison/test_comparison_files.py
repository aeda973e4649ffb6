"""A file as the data of a comparison: read as `train` reads it, and known by its content."""

import json

import pytest
from comparison_harness import SMALL, TOY

from hf_posenc.comparison import execute, load_plan, load_runs, read_plan
from hf_posenc.comparison.tasks import load_task, training_options
from hf_posenc.data.reading import names_of
from hf_posenc.errors import UserError

ROWS = [(f"{number} {'good' if number % 2 else 'bad'} film", "yes" if number % 2 else "no") for number in range(40)]
FIELDS = {"train_length": 8, "test_lengths": [8], "train_examples": None, "test_examples": None}


def write(path, rows=ROWS, delimiter=","):
    lines = [("body", "kind"), *rows]
    path.write_text("".join(delimiter.join(line) + "\n" for line in lines))
    return path


def plan(path, **fields):
    options = {**SMALL, "text_column": "body", "label_column": "kind", "max_steps": 2}
    return read_plan({**TOY, **FIELDS, "tasks": [str(path)], "options": options, **fields})


def test_a_file_is_compared_on_rows_that_no_run_trains_on(tmp_path):
    made = plan(write(tmp_path / "mine.csv"), schemes=["none"])
    (task,) = made.tasks
    assert (task.name, len(task.sha256)) == ("mine", 64)
    result = execute(made, tmp_path / "results")
    assert len(result.done) == 1, result.failed
    (run,) = load_runs(tmp_path / "results", load_plan(tmp_path / "results"))
    assert run["train_examples"] == 36
    assert [(test["part"], test["examples"]) for test in run["tests"]] == [("mine", 4)]
    parts = load_task(made, task)
    assert sorted([*parts["train"]["body"], *parts["test"]["body"]]) == sorted(text for text, _ in ROWS)
    options = training_options(made, made.runs()[0], tmp_path)
    with open(options["data"]) as file:
        trained = {json.loads(line)["body"] for line in file}
    assert not trained & set(parts["test"]["body"])
    assert sorted(parts["test"]["kind"]) == ["no", "no", "yes", "yes"]


def test_a_plan_is_the_same_however_the_path_of_its_file_is_spelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.csv")
    execute(plan("mine.csv", schemes=["none"]), "results")
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "mine.csv")
    for spelled in ("./mine.csv", tmp_path / "mine.csv", "elsewhere/mine.csv"):
        assert len(execute(plan(spelled, schemes=["none"]), "results").skipped) == 1
    write(tmp_path / "mine.csv", ROWS[2:])
    with pytest.raises(UserError, match="another plan: it differs in task mine"):
        execute(plan("mine.csv", schemes=["none"]), "results")
    recorded = json.loads((tmp_path / "results" / "plan.json").read_text())
    recorded["tasks"][0]["data"] = "mine.csv"
    with pytest.raises(UserError, match="'mine.csv' isn't the one that the plan names: its content has changed"):
        read_plan(recorded)


def test_a_folder_is_the_same_however_it_is_spelled(tmp_path, monkeypatch, pretended):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        write(tmp_path / "data" / f"{split}.csv")
    execute(plan("data", schemes=["none"]), "results")
    for spelled in ("./data", tmp_path / "data", "data/"):
        assert len(execute(plan(spelled, schemes=["none"]), "results").skipped) == 1
    assert "sha256" not in (tmp_path / "results" / "plan.json").read_text()


def test_columns_and_delimiter_are_options_of_the_command(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.csv", delimiter=";")
    seen = []
    monkeypatch.setattr("hf_posenc.comparison.execute", lambda plan, *_, **__: seen.append(plan) or exit(7))
    words = ["-o", "new", "--data", "mine.csv", "--schemes", "none", "--delimiter", ";"]
    code, _, err = command("compare", *words, "--text-column", "body", "--label-column", "kind")
    assert code == 7, err
    assert names_of(load_task(seen[0], seen[0].tasks[0])["train"]) == ["body", "kind"]
    assert not (tmp_path / "new").exists()
