"""Commands that are killed: wherever it was, the same command, or the one that its message names, ends the same.

Each command runs once, and its folder is copied before file operations in it. From each copy it goes on. There are
hundreds: every third operation, and of the files cut short every fourth, stand for all.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from accelerate.state import AcceleratorState
from safetensors.numpy import load_file

from hf_posenc import Comparison, Healing, UserError, convert, export
from hf_posenc.comparison import execute
from hf_posenc.conversion import heal as healing
from tests.support.common import tiny_classifier
from tests.support.comparison import quiet, toy
from tests.support.conversion import sentences, tiny_source, tiny_tokenizer
from tests.support.kills import copied_before_each_operation, damaged
from tests.support.training import snapshot, train


def go_on(command: Callable[..., Any], *known: str) -> None:
    """Runs it as it was; where it is refused, as its message says, if it is finished or one of the `known` ways out."""
    try:
        command()
    except UserError as error:
        refusal = error
    else:
        return
    named = [name for name in known if f"({name}=True)" in str(refusal)]
    assert len(named) == 1, refusal
    command(**{named[0]: True})


def assert_same_model(folder: Path, whole: Path) -> None:
    """The same files, and the same weights bit for bit."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in whole.iterdir())
    ours, theirs = (load_file(place / "model.safetensors") for place in (folder, whole))
    assert all(np.array_equal(ours.pop(name), value) for name, value in theirs.items())
    assert not ours


RUN: dict[str, Any] = {"epochs": 1.5, "batch_size": 40, "learning_rate": 2e-2, "save_strategy": None}
RUN |= {"num_hidden_layers": 1, "max_rows": 80}


@pytest.mark.parametrize(
    ("replaces", "every"),
    [pytest.param(False, 3, marks=pytest.mark.slow), pytest.param(True, 3, marks=pytest.mark.slow), (True, 40)],
)
def test_a_training(files, tmp_path, replaces, every):
    AcceleratorState._reset_state(reset_partial_state=True)
    work, options = tmp_path / "work", {**files, **RUN}
    whole = train(tmp_path / "whole" / "out", **options).output
    if replaces:
        train(work / "out", **options, seed=2, scheme="none")
        (work / "out" / "notes.txt").write_text("mine")
        (whole / "notes.txt").write_text("mine")
    work.mkdir(exist_ok=True)
    before = snapshot(work)
    with copied_before_each_operation(work, tmp_path / "copies", every) as copies:
        train(work / "out", **options, overwrite=replaces)
    assert len(copies) > 60 / every
    for copy in [*copies, *(damaged(copies)[::4] if every == 3 else ())]:
        complete = (".posenc.writing/_files.json", "position_rope.py")
        if not any((copy / "out" / name).is_file() for name in complete):
            assert before.items() <= snapshot(copy).items()  # until the new run is whole, the old one is there
        go_on(lambda copy=copy, **way: train(copy / "out", **options, **way), "resume", "overwrite")
        assert_same_model(copy / "out", whole)


@pytest.mark.slow
def test_a_healing(tmp_path, monkeypatch):
    arguments = healing._arguments

    def often(*given, **options):
        chosen = arguments(*given, **options)
        chosen.save_steps = 2
        return chosen

    monkeypatch.setattr(healing, "_arguments", often)
    tiny_source(tmp_path / "source", "bert", "fill-mask", num_hidden_layers=1)
    tiny_tokenizer(tmp_path / "source")
    texts = Healing(sentences(60), batch_tokens=80, max_steps=5)

    def run(folder: Path, **way: bool) -> None:
        convert(tmp_path / "source", folder / "out", scheme="rope", healing=texts, measure=False, **way)

    (tmp_path / "work").mkdir()
    with copied_before_each_operation(tmp_path / "work", tmp_path / "copies", every=3) as copies:
        run(tmp_path / "work")
    assert len(copies) > 20
    for copy in [*copies, *damaged(copies)[::4]]:
        go_on(lambda copy=copy, **way: run(copy, **way), "overwrite")
        if (copy / "out.healing").exists():  # it was killed after the model was whole
            run(copy, overwrite=True)
        assert_same_model(copy / "out", tmp_path / "work" / "out")
        assert [path.name for path in copy.iterdir()] == ["out"]


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 10])
def test_an_export(tmp_path, every):
    bert = {"norm_position": "post", "classifier_pooling": "cls", "classifier_hidden_act": "tanh"}
    tiny_classifier(tmp_path / "source", ["a film"], ("b", "g"), **bert)
    work = tmp_path / "work"
    for folder in (work, tmp_path / "whole"):
        export(tmp_path / "source", folder / "out", to="native")
        (folder / "out" / "notes.txt").write_text("mine")
    with copied_before_each_operation(work, tmp_path / "copies", every) as copies:
        export(tmp_path / "source", work / "out", to="native", overwrite=True)
    assert len(copies) >= 20 / every
    for copy in [*copies, *(damaged(copies) if every == 1 else ())]:
        export(tmp_path / "source", copy / "out", to="native", overwrite=True)
        assert_same_model(copy / "out", tmp_path / "whole" / "out")


@pytest.mark.slow
def test_a_comparison(tmp_path):
    AcceleratorState._reset_state(reset_partial_state=True)
    plan = toy(schemes=["none", "rope"], options={**toy().options, "epochs": 1.5})

    def table(folder: Path) -> pd.DataFrame:
        shutil.rmtree(folder / ".locks")
        return Comparison(folder).table.drop(columns="seconds")

    work = tmp_path / "work"
    work.mkdir()
    with copied_before_each_operation(work, tmp_path / "copies") as copies:
        execute(plan, work / "out", console=quiet())
    assert len(copies) > 60
    whole = table(work / "out")
    for copy in [*copies, *damaged(copies)][::7]:  # all 600 take a quarter of an hour
        shutil.rmtree(work)  # where it was: a run's options name the folder of the tokenizer
        shutil.copytree(copy, work)
        assert execute(plan, work / "out", console=quiet()).failed == {}, copy.name
        pd.testing.assert_frame_equal(table(work / "out"), whole)
