"""The folder of a run: refused if taken, replaced whole or not at all, resumed exactly; Ctrl-C, and divergence."""

import hashlib
import json
import os
import shutil
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from accelerate.state import AcceleratorState
from rich.console import Console
from safetensors.torch import load_file
from transformers import Trainer
from transformers.trainer_callback import CallbackHandler

from hf_posenc import Diverged, Interrupted, UserError, fit
from hf_posenc.training.trainer import RunTrainer
from tests.support.common import others_slow, write_jsonl
from tests.support.training import (
    SIZES,
    assert_same_weights,
    checkpoints,
    command,
    results,
    snapshot,
    train,
)

pytestmark = pytest.mark.usefixtures("spelt_by_train")

# 10 steps an epoch; dropout is on, so that random numbers have to go on where they stopped.
EVERY_4: dict[str, Any] = {"epochs": 2, "save_strategy": "steps", "save_steps": 4, "hidden_dropout_prob": 0.1}
BEST: dict[str, Any] = {"epochs": 3, "learning_rate": 2e-2, "hidden_dropout_prob": 0.1, "save_strategy": None}
BEST |= {"eval_strategy": "steps", "eval_steps": 4}
PATIENT: dict[str, Any] = {**BEST, "epochs": 8, "patience": 2}  # it stops after step 12, the best is step 4's
OTHER: dict[str, Any] = {**EVERY_4, "seed": 2, "epochs": 1}


LIST = "_files.json"


class Killed(BaseException):
    """An end that nothing handles."""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory, files):
    AcceleratorState._reset_state(reset_partial_state=True)
    return train(tmp_path_factory.mktemp("whole") / "run", **files, **EVERY_4).output


@pytest.fixture
def whole(whole_run, tmp_path):
    return Path(shutil.copytree(whole_run, tmp_path / "whole"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".png")


@pytest.fixture
def call_at():
    """Has the next runs call a function of the model at a moment of training, after so many steps."""
    patch, call_event = pytest.MonkeyPatch(), CallbackHandler.call_event

    def arrange(moment: str, step: int, function) -> None:
        def call(self, event, args, state, control, **kwargs):
            control = call_event(self, event, args, state, control, **kwargs)
            if (event, state.global_step) == (moment, step):
                function(self.model)
            return control

        patch.setattr(CallbackHandler, "call_event", call)

    arrange.undo = patch.undo
    yield arrange
    patch.undo()


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def evaluations(folder: Path) -> list[tuple[int, float]]:
    """The steps at which a run was evaluated, and its losses there."""
    return [(entry["step"], entry["eval_loss"]) for entry in results(folder)["history"] if "eval_loss" in entry]


def press_ctrl_c(*_):
    os.kill(os.getpid(), signal.SIGINT)


def die(*_):
    raise Killed


@pytest.fixture
def killed(call_at):
    """What a run leaves that ends without a word after so many steps."""

    def run(folder: Path, step: int, **options: Any) -> Path:
        call_at("on_step_end", step, die)
        with pytest.raises(Killed):
            train(folder, **options)
        call_at.undo()
        return folder

    return run


# ---- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "step", "point"),
    [
        pytest.param(EVERY_4, 6, 4, marks=pytest.mark.slow),
        # An epoch ends, and is evaluated, after its last step has been saved.
        pytest.param({**EVERY_4, "save_steps": 5}, 12, 10, marks=pytest.mark.slow),
        pytest.param(EVERY_4, 3, 0, marks=pytest.mark.slow),  # killed before its first checkpoint: it begins anew
        (BEST, 13, 12),
        pytest.param({**EVERY_4, "gradient_accumulation_steps": 2, "save_steps": 3}, 7, 6, marks=pytest.mark.slow),
        pytest.param({**EVERY_4, "schedule": "one-cycle"}, 13, 12, marks=pytest.mark.slow),
    ],
    ids=["early", "late", "unsaved", "best", "accumulated", "one_cycle"],
)
def test_a_run_that_was_killed_resumes_to_the_same_end(whole, files, tmp_path, killed, options, step, point):
    if options is not EVERY_4:
        whole = train(tmp_path / "other", **files, **options).output
    folder = killed(tmp_path / "killed", step, **files, **options)
    pickles = {path.name for path in folder.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")}
    assert pickles == ({"optimizer.pt", "scheduler.pt", "rng_state.pth"} if point else set())
    if options is BEST:  # FSDP leaves no config beside its weights
        (folder / f"checkpoint-{point}" / "config.json").unlink()
    console = Console(file=StringIO(), width=200)
    train(folder, console, **files, **options, resume=True)
    assert (f"Goes on from checkpoint-{point}." in console.file.getvalue()) == bool(point)
    assert_same_weights(whole, folder)
    assert names(folder) == names(whole)  # no checkpoints, no run.json
    first, second = results(whole), results(folder)
    assert second["best"] == first["best"]
    if options["save_strategy"] is None:  # evaluations choose the weights
        assert evaluations(folder) == evaluations(whole)
    for name, value in first["metrics"].items():
        if name.endswith(("eval_loss", "test_loss", "accuracy")):  # train_loss is of the steps since the resume
            assert second["metrics"][name] == pytest.approx(value, abs=1e-6), name


@pytest.mark.parametrize("evaluations", [2, 3], ids=["counting", "ended"])
def test_patience_goes_on_counting_where_a_run_was_killed(files, tmp_path, monkeypatch, call_at, evaluations):
    losses = [1.0, 1.1, 1.2, 0.5]  # an epoch each; two without gain end it before the fourth, which would be the best
    coming: list[float] = []

    def measured(*_: Any) -> dict[str, float]:
        return {"loss": coming.pop(0) if coming else 0.5, "accuracy": 0.5}

    monkeypatch.setattr("hf_posenc.training.trainer.loss_and_metrics", measured)
    options = {**files, "patience": 2, "epochs": 4, "save_strategy": None}
    coming[:] = losses
    whole = train(tmp_path / "whole", **options).output
    coming[:] = losses
    call_at("on_save", 10 * evaluations, die)
    with pytest.raises(Killed):
        train(tmp_path / "killed", **options)
    call_at.undo()
    coming[:] = losses[evaluations:]
    resumed = train(tmp_path / "killed", **options, resume=True).output
    assert_same_weights(whole, resumed)
    assert results(resumed)["best"] == results(whole)["best"]
    assert results(resumed)["best"]["step"] == 10
    evaluated = [
        [entry["step"] for entry in results(run)["history"] if "eval_loss" in entry] for run in (whole, resumed)
    ]
    assert evaluated == [[10, 20, 30], [10, 20, 30]]


BY_EPOCH: dict[str, Any] = {**BEST, "eval_strategy": "epoch", "eval_steps": None}
ENDED: dict[str, dict[str, Any]] = {
    "max_steps": {**BY_EPOCH, "epochs": None, "max_steps": 7},
    "part_of_an_epoch": {**BY_EPOCH, "epochs": 1.5},
    "patience": PATIENT,
    "whole_epochs": {**BY_EPOCH, "epochs": 2},
}


@pytest.mark.parametrize("name", others_slow(ENDED, "max_steps"))
def test_a_run_that_had_trained_all_its_steps_trains_none_and_ends_the_same(
    files, tmp_path, call_at, monkeypatch, name
):
    options = {**files, **ENDED[name]}
    whole = train(tmp_path / "whole", **options)
    steps = max(entry["step"] for entry in whole.report.history)
    call_at("on_train_end", steps, die)
    with pytest.raises(Killed):
        train(tmp_path / "killed", **options)
    call_at.undo()
    monkeypatch.setattr("transformers.Trainer.training_step", pytest.fail)
    resumed = train(tmp_path / "killed", **options, resume=True)
    assert_same_weights(whole.output, resumed.output)
    assert resumed.report.best == whole.report.best
    assert evaluations(resumed.output) == evaluations(whole.output)
    assert results(resumed.output)["history"][-1]["step"] == steps


def test_low_rank_changes_resume_to_the_same_end(whole, files, tmp_path, killed):
    pytest.importorskip("peft")
    options = {**EVERY_4, "pretrained": str(whole), "lora": True}
    expected = train(tmp_path / "expected", **files, **options).output
    folder = killed(tmp_path / "killed", 6, **files, **options)
    with pytest.raises(UserError, match="base_layer"):  # what it saves on the way isn't merged
        train(tmp_path / "on", **files, pretrained=str(folder / "checkpoint-4"))
    train(folder, **files, **options, resume=True)
    assert_same_weights(expected, folder)


def test_checkpoints_that_lack_a_file_or_the_end_of_one_are_passed_over(files, tmp_path, killed, call_at, caplog):
    options = {**files, **EVERY_4, "save_steps": 1}
    folder = killed(tmp_path / "run", 2, **options)
    shutil.copytree(folder / "checkpoint-1", folder / "checkpoint-2")
    needed = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
    damaged = []
    for number, (name, size) in enumerate((name, size) for name in needed for size in (None, 0, 9)):
        copy = shutil.copytree(folder / "checkpoint-1", folder / f"checkpoint-{number + 3}")
        (copy / name).unlink() if size is None else os.truncate(copy / name, size)
        damaged.append(copy.name)
    call_at("on_train_begin", 1, die)
    console = Console(file=StringIO(), width=200)
    with pytest.raises(Killed):
        train(folder, console, **options, resume=True)
    assert f"Not whole, and passed over: {', '.join(damaged)} in" in caplog.text
    assert "Goes on from checkpoint-2." in console.file.getvalue()


def labelled(**labels: str) -> list[dict[str, str]]:
    return [{"text": f"{word} film {n}", "label": label} for n in range(12) for word, label in labels.items()]


ROWS = labelled(good="good", bad="bad")
DIGEST = "was begun with digest_of_rows='.*', now it is '.*'"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "none"}, "was begun with scheme=None, now it is 'none'"),
        ({"schedule": "cosine"}, "was begun with schedule='linear', now it is 'cosine'. Resume with what"),
        ({"position_rate": 3.0}, "was begun with position_rate=None, .* 3.0"),
        ({"weight_decay": 0.5}, "was begun with set={"),
        ({"overwrite": True}, "--overwrite begins anew, --resume goes on. Give one of them"),
        (dict.fromkeys(["data", "validation"], labelled(good="aaa", bad="bad")), DIGEST + ". Resume with what"),
        ({"data": labelled(good="bad", bad="good")}, DIGEST),
        ({"validation": ROWS[:4]}, DIGEST),
    ],
)
def test_a_run_is_resumed_with_what_it_began_with(tmp_path, killed, change, message):
    files = {name: tmp_path / f"{name}.jsonl" for name in ("data", "validation")}
    options = {name: write_jsonl(path, ROWS) for name, path in files.items()} | {**EVERY_4, "save_steps": 1}
    folder = killed(tmp_path / "run", 2, **options)
    for name in change.keys() & files.keys():
        write_jsonl(files[name], change[name])
    before = snapshot(folder)
    with pytest.raises(UserError, match=message):
        train(folder, **{**change, **options}, resume=True)
    assert snapshot(folder) == before


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "step", "times", "point"),
    [
        ("on_step_begin", 6, 1, 7),
        pytest.param("on_step_begin", 14, 1, 15, marks=pytest.mark.slow),  # in the last step: evaluated, then saved
        pytest.param("on_epoch_end", 20, 1, 20, marks=pytest.mark.slow),  # after the last step, it isn't lost
        pytest.param("on_save", 20, 1, 20, marks=pytest.mark.slow),
        pytest.param("on_train_end", 20, 1, 20, marks=pytest.mark.slow),
        ("on_step_begin", 5, 2, 4),  # twice: at once
    ],
)
def test_ctrl_c_saves_and_resuming_ends_in_the_same_weights(
    whole, files, tmp_path, call_at, moment, step, times, point
):
    stopped, options = tmp_path / "stopped", EVERY_4
    if point == 15:
        options = {**BY_EPOCH, "epochs": 1.5}
        whole = train(tmp_path / "part", **files, **options).output
    call_at(moment, step, lambda model: [press_ctrl_c() for _ in range(times)])
    with pytest.raises(Interrupted, match=rf"stopped/checkpoint-{point}'. The same command with --resume goes on"):
        train(stopped, **files, **options)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not (stopped / "config.json").exists()  # nothing that looks like a finished model
    call_at.undo()
    resumed = train(stopped, **files, **options, resume=True)
    if options["save_strategy"] is None:
        assert evaluations(stopped) == evaluations(whole)
    # The Trainer's loss and seconds would be of the steps since then, not of the run.
    assert not [name for name in resumed.report.metrics if name.startswith("train_")]
    assert resumed.report.seconds is None
    assert_same_weights(whole, stopped)


# ---- a folder that is taken -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "overwrite", "message"),
    [
        (["run.json"], False, r"already holds a run \(run.json\). Name a new folder, or replace it \(--overwrite\)"),
        (
            ["run.json", "checkpoint-4/optimizer.pt"],
            False,
            r"checkpoint-4, run.json\). .*, or go on with it \(--resume",
        ),
        (["run.json", "checkpoint-4/optimizer.pt"], True, None),
        (
            ["run.json", "checkpoint-4/notes.txt"],
            True,
            "holds checkpoint-4/notes.txt, which the run there didn't write",
        ),
        (
            ["run.json", "checkpoint-4/notes.txt"],
            False,
            "holds checkpoint-4/notes.txt, which the run there didn't write",
        ),
        (["run.json", "config.json", "notes.txt"], True, "holds config.json, which hf-posenc didn't write, or"),
        (["run.json", "notes.txt"], True, None),
        (["run.json of another tool", "checkpoint-300/optimizer.pt"], True, "holds checkpoint-300, run.json, and no"),
    ],
)
def test_a_folder_with_an_unfinished_run_is_gone_on_with_or_replaced_or_refused(
    files, tmp_path, there, overwrite, message
):
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name.startswith("run.json"):
            write(tmp_path / "run.json", {"digest_of_rows": "0"} if name == "run.json" else {"seed": 1})
        else:
            (tmp_path / name).write_text("{}")
    before = snapshot(tmp_path)
    if message is None:
        train(tmp_path, **files, max_steps=1, overwrite=True)
        assert snapshot(tmp_path).items() >= {name: before[name] for name in there if name == "notes.txt"}.items()
        assert names(tmp_path)[-1] != "run.json"
        return
    with pytest.raises(UserError, match=message):
        train(tmp_path, **files, overwrite=overwrite)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_column": "body"}, "no column 'body'. It has 'text', 'label', 'paradigm', 'pair_id': name one"),
        ({"class_weights": '{"a": 1}'}, "--class-weights"),
        ({"patience": 2, "validation": None, "validation_share": 0.0}, "--patience 2 needs evaluations"),
        ({"metric_for_best_model": "bleu"}, "--set metric_for_best_model=bleu isn't measured here. Choose loss, acc"),
        ({"max_length": 600, "scheme": "learned", "max_position_embeddings": 64}, "--max-length 600 is too long"),
        ({"output": "{folder}/run.jsonl/x"}, "can't be written to: a file is in the way"),
    ],
)
def test_a_refused_run_leaves_nothing_behind(whole, files, tmp_path, change, message):
    (tmp_path / "run.jsonl").touch()
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match="holds no unfinished run. .* --pretrained"):
        train(whole, **files, resume=True)
    for output, overwrite in ((tmp_path / "new", False), (whole, True)):
        options = {**files, "output": str(output), **change}
        output = options.pop("output").format(folder=tmp_path)
        with pytest.raises(UserError, match=message):
            train(output, **options, overwrite=overwrite)
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_a_run_that_fails_before_its_first_checkpoint_leaves_no_run(files, tmp_path, monkeypatch):
    monkeypatch.delattr("hf_posenc.model.modeling_posenc.PosEncModel.make_layout")
    with pytest.raises(AttributeError):
        train(tmp_path / "new", **files)
    assert not (tmp_path / "new").exists()


def test_until_the_new_run_is_whole_the_old_one_stays(whole, files, tmp_path, call_at):
    (whole / "notes.txt").write_text("mine")
    (whole / "adapter_config.json").write_text("{}")  # which the old run wrote
    listed = json.loads((whole / LIST).read_text())["files"]
    write(whole / LIST, {"files": {**listed, "adapter_config.json": hashlib.sha256(b"{}").hexdigest()}})
    before = snapshot(whole)
    (whole / "checkpoint-99").mkdir()
    write(whole / "run.json", {"digest_of_rows": "of another that was killed"})
    call_at("on_step_begin", 6, press_ctrl_c)
    console = Console(file=StringIO(), width=200)
    message = r"point-7'. .*, without --overwrite, .* The finished run in '.*whole' is as it was"
    with pytest.raises(Interrupted, match=message):
        train(whole, console, **files, **OTHER, overwrite=True)
    assert "Deleted of the run that is replaced: checkpoint-99." in console.file.getvalue()
    assert before.items() <= snapshot(whole).items()
    assert [path.name for path in checkpoints(whole)] == ["checkpoint-4", "checkpoint-7"]
    call_at.undo()
    with pytest.raises(UserError, match="already holds a run"):
        train(whole, **files, **OTHER)
    train(whole, **files, **OTHER, resume=True)
    expected = train(tmp_path / "expected", **files, **OTHER).output
    assert_same_weights(whole, expected)
    assert names(whole) == sorted([*names(expected), "notes.txt"])
    assert results(whole)["options"]["output"] == "whole"


LISTING = "hf_posenc.checkpoints.keeper.write_json"


def _full(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("transformers.Trainer._save_optimizer_and_scheduler", "No space left .*no checkpoint had been saved. The fin"),
        (LISTING, "failed: No space left on device. Make room, .*checkpoint-10'. The same command"),
        (
            "hf_posenc.training.report.TrainingReport.card",
            "failed: No space left on device. Make room, .*checkpoint-10'",
        ),
    ],
)
def test_an_overwriting_run_that_fails_leaves_the_old_one(whole, files, target, message, monkeypatch):
    before = snapshot(whole)
    monkeypatch.setattr(target, _full)
    with pytest.raises(UserError, match=message):
        train(whole, **files, **OTHER, overwrite=True)
    assert before.items() <= snapshot(whole).items()
    assert not [name for name in names(whole) if name.startswith(".")]


def test_a_full_disk_is_one_line_and_keeps_the_earlier_checkpoints(order, tmp_path, monkeypatch, run):
    resource = pytest.importorskip("resource")
    options = {**order, **dict.fromkeys(SIZES), "epochs": 2, "save_strategy": "epoch"}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    save = Trainer._save_checkpoint

    def then_full(*arguments: Any) -> None:
        save(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # the weights are larger

    monkeypatch.setattr(Trainer, "_save_checkpoint", then_full)
    try:
        code, _, err = run("train", *command(tmp_path / "run", **options))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    (error,) = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert "Make room, or name another folder. What is left: '" in error
    assert "checkpoint-10'. The same command with --resume goes on from there." in error
    monkeypatch.setattr(Trainer, "_save_checkpoint", save)
    assert run("train", *command(tmp_path / "run", **options, resume=True))[0] == 0


def test_a_run_whose_end_could_not_be_written_ends_in_its_best_weights_where_it_is_moved(files, tmp_path, monkeypatch):
    expected = train(tmp_path / "expected", **files, **BEST)
    assert expected.report.best["step"] < 30
    monkeypatch.setattr(LISTING, _full)
    with pytest.raises(UserError, match=r"Make room, .*checkpoint-30'. The same command with --resume"):
        train(tmp_path / "run", **files, **BEST)
    monkeypatch.undo()
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    train(moved, **files, **BEST, resume=True)
    assert_same_weights(expected.output, moved)


def test_results_name_files_without_their_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "clients").mkdir()
    file = write_jsonl(tmp_path / "clients" / "a.jsonl", [{"a/b": row["text"], "label": row["label"]} for row in ROWS])
    for name in ("c.jsonl", "d.jsonl"):
        shutil.copy(file, tmp_path / name)
    asked = {"data": "clients/a.jsonl", "validation": f"../{tmp_path.name}/c.jsonl", "test": "~/d.jsonl"}
    asked["text_column"] = "a/b"
    train("run", **asked, max_steps=1)
    options = results("run")["options"]
    plain = {"data": "a.jsonl", "validation": "c.jsonl", "test": "d.jsonl", "text_column": "a/b", "output": "run"}
    assert plain.items() <= options.items()
    for path in (tmp_path / "run").iterdir():
        assert path.suffix not in (".bin", ".pt", ".pth", ".pkl")
        assert tmp_path.name not in path.read_bytes().decode(errors="ignore"), path


# ---- weights that are no numbers ------------------------------------------------------------------------------------


UNSTABLE = {"epochs": 2, "save_strategy": "epoch", "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0}


NOTHING_DONE = "No step has changed the weights: look at them, and at the data."


@pytest.mark.parametrize(
    ("scale", "step", "rate", "way_out"), [(1e20, 1, "0", NOTHING_DONE), (1e7, 3, "1", ".*--learning-rate below 1.0.*")]
)
def test_a_loss_that_is_no_number_ends_the_run_at_its_step(tmp_path, files, scale, step, rate, way_out):
    options = {**UNSTABLE, **files, "initializer_range": scale, "norm_position": "pre"}
    message = f"diverged: in step {step}, at a learning rate of {rate}, the loss is nan. {way_out}"
    message += " ?What is left: no checkpoint had been saved.$"
    with pytest.raises(Diverged, match=message):
        train(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()  # a smaller rate may have its name


@pytest.mark.parametrize("where", ["on a CPU", "on a GPU", "in a transformers without the private method"])
def test_a_gradient_norm_that_is_no_number_ends_the_run_at_its_step(tmp_path, files, call_at, where, monkeypatch):
    if where == "on a GPU":  # the norm is looked at in the step that follows
        monkeypatch.setattr("hf_posenc.training.recipe.trains_on_cpu", lambda _: False)
    call_at("on_step_begin", 5, lambda model: model.classifier.out_proj.weight.register_hook(lambda grad: grad * 1e40))
    found = "step 6, at a learning rate of .*, the gradient norm is inf"
    if where.startswith("in"):
        monkeypatch.delattr(RunTrainer, "_get_grad_norm")
        found = "step 7, at a learning rate of .*, the loss is nan"
    with pytest.raises(Diverged, match=rf"in {found}.* What is left: '.*checkpoint-4'.$"):
        train(tmp_path / "run", **files, **EVERY_4, bf16=False, dataloader_pin_memory=False)
    (kept,) = checkpoints(tmp_path / "run")
    assert all(value.isfinite().all() for value in load_file(kept / "model.safetensors").values())


@pytest.mark.parametrize("evaluated", [True, False])
def test_weights_that_are_no_numbers_after_the_last_step_are_neither_scored_nor_saved(
    tmp_path, files, call_at, evaluated
):
    call_at("on_step_end", 10, lambda model: next(model.parameters()).data.fill_(float("nan")))
    message = r"diverged: after step 10 1 weights hold NaN or infinity, .*--learning-rate below"
    with pytest.raises(Diverged, match=message):
        train(tmp_path / "run", **(files if evaluated else {"data": files["data"]}))
    assert not (tmp_path / "run").exists()


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    fitted = fit(["good", "bad"] * 8, ["a", "b"] * 8, max_steps=1, validation_share=0, device="cpu")
    next(fitted.model_.parameters()).data.fill_(float("nan"))
    with pytest.raises(Diverged, match="holds NaN or infinity: the model isn't saved"):
        fitted.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
