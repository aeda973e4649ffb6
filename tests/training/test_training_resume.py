import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from common import others_slow
from safetensors.torch import load, load_file, save_file
from training_harness import assert_same_weights, copy_until, order_files, results, snapshot, train, train_by_command
from transformers import TrainerCallback, TrainerControl, TrainerState

from hf_posenc import PosEncForSequenceClassification, fit
from hf_posenc.errors import Diverged
from hf_posenc.files import swap_in, write_json
from hf_posenc.training import Interrupted, UserError, callbacks, is_complete, loop
from hf_posenc.training.arguments import RunArguments
from hf_posenc.training.checkpoints import checkpoints, find_resume_point, last_complete_checkpoint, why_not_resumable
from hf_posenc.training.output_folder import folder_lock, set_aside

# 10 steps an epoch; dropout is on, so that random numbers have to go on where they stopped.
OPTIONS = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4, "save_total_limit": None}


BEST = {"num_train_epochs": 2, "save_strategy": "epoch", "do_eval": True, "learning_rate": 2e-2, "save_total_limit": 5}


def once(folder, options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "datasets")
        AcceleratorState._reset_state(reset_partial_state=True)
        return train(folder / "run", **order_files(folder), **options).output_dir


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return once(tmp_path_factory.mktemp("whole"), OPTIONS)


@pytest.fixture(scope="module")
def longer_best_run(tmp_path_factory):
    return once(tmp_path_factory.mktemp("longer"), {**BEST, "num_train_epochs": 3})


@pytest.fixture
def undisturbed(whole_run, tmp_path):
    return Path(shutil.copytree(whole_run, tmp_path / "whole"))


@pytest.mark.promise("Resuming", "A run that was killed resumes and ends in the weights of one that never stopped")
@pytest.mark.parametrize("step", [8, 12])  # in the middle of the first epoch, and of the second
def test_resuming_ends_in_the_same_weights(undisturbed, order, tmp_path, step):
    killed = copy_until(undisturbed, tmp_path / "killed", step)
    train(killed, **order, **OPTIONS, resume_from_checkpoint="true")
    assert_same_weights(undisturbed, killed)
    assert (killed / "tokenizer.json").read_bytes() == (undisturbed / "tokenizer.json").read_bytes()


def test_resuming_a_run_that_had_ended_gives_no_loss_of_no_steps(undisturbed, order):
    before = results(undisturbed)["metrics"]
    again = train(undisturbed, **order, **OPTIONS, do_predict=True, resume_from_checkpoint="true")
    assert "train_loss" in before
    assert {name for name in again.metrics if name.startswith("train_")} == set()
    assert again.metrics["test_accuracy"] > 0


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"one_cycle": True}, marks=pytest.mark.slow),
        {"gradient_accumulation_steps": 2, "save_steps": 3},
    ],
    ids=["one_cycle", "accumulated"],
)
def test_resuming_with_other_options_ends_in_the_same_weights(order, tmp_path, options):
    options = {**OPTIONS, **options}
    whole = train(tmp_path / "whole", **order, **options).output_dir
    killed = copy_until(whole, tmp_path / "killed", options["save_steps"])
    train(killed, **order, **options, resume_from_checkpoint="true")
    assert_same_weights(whole, killed)


@pytest.mark.parametrize("step", [10, 20])
def test_resuming_keeps_the_best_weights_too(longer_best_run, order, tmp_path, step):
    """Of the folder that is resumed in, not of the one where the run began."""
    options = {**BEST, "num_train_epochs": 3}
    whole = Path(shutil.copytree(longer_best_run, tmp_path / "whole"))
    best = results(whole)["best"]
    assert best["step"] < 30
    killed = copy_until(whole, tmp_path / "killed", step)
    shutil.move(whole, tmp_path / "moved")
    train(killed, **order, **options, resume_from_checkpoint="true")
    assert results(killed)["best"] == best
    assert_same_weights(tmp_path / "moved", killed)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {"missing": Path.unlink, "empty": lambda path: path.write_bytes(b""), "damaged": _cut}
NEEDED = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "trainer_state.json", "results.json"),
    *("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"),
)


def _diverged(checkpoint: Path) -> None:
    weights = load((checkpoint / "model.safetensors").read_bytes())
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})


@pytest.mark.promise("Resuming", "Resuming passes over a checkpoint with a missing, empty or truncated file")
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", NEEDED)
def test_a_checkpoint_that_lost_a_file_is_passed_over(undisturbed, name, damage, caplog):
    assert is_complete(undisturbed / "checkpoint-20")
    DAMAGE[damage](undisturbed / "checkpoint-20" / name)
    assert not is_complete(undisturbed / "checkpoint-20")
    assert find_resume_point(undisturbed, "true") == undisturbed / "checkpoint-16"
    (message,) = caplog.messages
    assert message == f"checkpoint-20 is damaged ({name} is {damage}): training goes on from checkpoint-16."


@pytest.mark.promise("Resuming", "Resuming passes over a checkpoint with an empty JSON object")
@pytest.mark.parametrize("name", [name for name in NEEDED if name.endswith(".json")])
def test_an_object_that_says_nothing_is_no_file_of_a_checkpoint(undisturbed, name):
    (undisturbed / "checkpoint-20" / name).write_text("{}")
    assert find_resume_point(undisturbed, "true") == undisturbed / "checkpoint-16"


def test_a_checkpoint_whose_weights_are_no_numbers_is_passed_over(undisturbed, caplog):
    _diverged(undisturbed / "checkpoint-20")
    assert find_resume_point(undisturbed, "true") == undisturbed / "checkpoint-16"
    assert "in model.safetensors holds NaN or infinity): training goes on from checkpoint-16" in caplog.text


def test_a_shard_that_is_missing_is_named(undisturbed):
    checkpoint = undisturbed / "checkpoint-20"
    PosEncForSequenceClassification.from_pretrained(checkpoint).save_pretrained(checkpoint, max_shard_size="50kB")
    (checkpoint / "model.safetensors").unlink(missing_ok=True)
    assert why_not_resumable(checkpoint) is None
    shard = sorted(checkpoint.glob("model-*.safetensors"))[-1]
    shard.unlink()
    assert why_not_resumable(checkpoint) == f"{shard.name} is missing"


def test_without_a_whole_checkpoint_it_says_what_to_do(undisturbed, order, tmp_path):
    killed = copy_until(undisturbed, tmp_path / "killed", 4)
    DAMAGE["empty"](killed / "checkpoint-4" / "optimizer.pt")
    before = snapshot(killed)
    with pytest.raises(UserError, match=r"checkpoint-4 is damaged \(optimizer.pt is empty\).*--overwrite-output-dir"):
        train(killed, **order, **OPTIONS, resume_from_checkpoint="true")
    assert snapshot(killed) == before


def test_what_was_killed_in_its_first_save_starts_at_the_beginning(undisturbed, order, tmp_path):
    """`results.json` is written last."""
    killed = copy_until(undisturbed, tmp_path / "killed", 4)
    for name in NEEDED[3:]:
        (killed / "checkpoint-4" / name).unlink()
    train(killed, **order, **OPTIONS, resume_from_checkpoint="true")
    assert_same_weights(undisturbed, killed)


def test_a_named_checkpoint_that_is_damaged_or_missing_is_refused(undisturbed):
    with pytest.raises(UserError, match=r"is no folder. Give a checkpoint-N folder, or true"):
        find_resume_point(undisturbed, str(undisturbed / "checkpoint-99"))
    _diverged(undisturbed / "checkpoint-20")
    left = r"damaged: .* holds NaN or infinity. The newest complete one beside it is .*checkpoint-16"
    with pytest.raises(UserError, match=left):
        find_resume_point(undisturbed, str(undisturbed / "checkpoint-20"))


@pytest.fixture
def call_at(monkeypatch):
    """Has the next runs call a function of the model at a moment of training, after so many steps."""

    def arrange(moment: str, step: int, function) -> None:
        def call(self, args, state, control, model=None, **kwargs):
            if state.global_step == step:
                function(model)

        make = loop.make_trainer

        def make_and_add(*args):
            trainer = make(*args)
            trainer.add_callback(type("Moment", (TrainerCallback,), {moment: call}))
            return trainer

        monkeypatch.setattr(loop, "make_trainer", make_and_add)

    return arrange


def press_ctrl_c(*_):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def press(call_at):
    """Ctrl-C in the given step of the next run."""
    return lambda step: call_at("on_step_begin", step - 1, press_ctrl_c)


@pytest.mark.promise("Resuming", "A run that Ctrl-C stopped resumes and ends in the weights of one that never stopped")
def test_ctrl_c_saves_and_resuming_ends_in_the_same_weights(undisturbed, order, tmp_path, press, monkeypatch):
    stopped = tmp_path / "stopped"
    press(7)
    left = r"newest checkpoint is .*checkpoint-7'. Go on with --resume-from-checkpoint true"
    with pytest.raises(Interrupted, match=left):
        train(stopped, **order, **OPTIONS)
    assert not (stopped / "config.json").exists()  # nothing that looks like a finished model
    monkeypatch.undo()
    train(stopped, **order, **OPTIONS, resume_from_checkpoint="true")
    assert_same_weights(undisturbed, stopped)


@pytest.mark.parametrize("moment", others_slow(["on_save", "on_epoch_end", "on_train_end"], "on_epoch_end"))
def test_ctrl_c_after_the_last_step_is_not_lost(undisturbed, order, tmp_path, call_at, monkeypatch, moment):
    call_at(moment, 20, press_ctrl_c)
    with pytest.raises(Interrupted, match=r"newest checkpoint is .*checkpoint-20'"):
        train(tmp_path / "stopped", **order, **OPTIONS)
    assert not (tmp_path / "stopped" / "config.json").exists()
    monkeypatch.undo()
    train(tmp_path / "stopped", **order, **OPTIONS, resume_from_checkpoint="true")
    assert_same_weights(undisturbed, tmp_path / "stopped")


def test_ctrl_c_twice_stops_at_once_and_keeps_what_was_saved(order, tmp_path, call_at):
    call_at("on_step_begin", 5, lambda model: [press_ctrl_c(), press_ctrl_c()])
    with pytest.raises(Interrupted, match="newest checkpoint is .*checkpoint-4'"):
        train(tmp_path / "stopped", **order, **OPTIONS)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_the_command_with_one_line_and_130(order, tmp_path, press, monkeypatch, capsys):
    press(3)
    assert train_by_command(monkeypatch, **order, **OPTIONS, output_dir=tmp_path / "stopped") == 130
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("Interrupted: the newest checkpoint is")


@pytest.mark.parametrize("resume", [None, "false"])
def test_another_run_that_is_not_to_be_resumed_is_refused_and_untouched(undisturbed, order, resume):
    before = snapshot(undisturbed)
    with pytest.raises(UserError, match=r"already holds another run \(config.json.*--overwrite-output-dir, or go on"):
        train(undisturbed, **order, **OPTIONS, resume_from_checkpoint=resume)
    assert snapshot(undisturbed) == before


@pytest.mark.promise("Files", "`--overwrite-output-dir` deletes no file that isn't the run's")
def test_overwriting_replaces_the_run_and_nothing_else(undisturbed, order):
    (undisturbed / "notes.txt").write_text("mine")
    (undisturbed / "predictions.jsonl").write_text("of the older run")
    train(undisturbed, **order, overwrite_output_dir=True, max_train_samples=32)
    assert not (undisturbed / "predictions.jsonl").exists()
    assert (undisturbed / "notes.txt").read_text() == "mine"
    assert not list(undisturbed.glob("checkpoint-*"))
    assert results(undisturbed)["summary"]["examples"] == {"train": 32}


OTHER = {"seed": 2, "num_train_epochs": 1, "save_strategy": "steps", "save_steps": 4, "keep_checkpoints": False}


@pytest.mark.promise(
    "Files",
    "`--overwrite-output-dir` keeps the old run until the new one is complete, and the new one can be resumed",
)
@pytest.mark.slow
def test_until_the_new_run_is_whole_the_old_one_stays_and_the_new_one_goes_on(
    undisturbed, order, tmp_path, press, monkeypatch
):
    (undisturbed / "notes.txt").write_text("mine")
    before = snapshot(undisturbed)
    press(7)
    left = r"newest checkpoint is '.*whole/checkpoint-7'. Go on .* The run in '.*whole' is as it was, its .*earlier'"
    with pytest.raises(Interrupted, match=left):
        train(undisturbed, **order, **OTHER, overwrite_output_dir=True)
    after = snapshot(undisturbed)
    assert {name: after[f".earlier/{name}" if "checkpoint-" in name else name] for name in before} == before
    assert [path.name for path in checkpoints(undisturbed)] == ["checkpoint-4", "checkpoint-7"]
    monkeypatch.undo()
    with pytest.raises(UserError, match="already holds another run"):
        train(undisturbed, **order, **OTHER)
    train(undisturbed, **order, **OTHER, overwrite_output_dir=True, resume_from_checkpoint="true")
    expected = train(tmp_path / "expected", **order, **OTHER).output_dir
    assert_same_weights(undisturbed, expected)
    assert {path.name for path in undisturbed.iterdir()} == {path.name for path in expected.iterdir()} | {"notes.txt"}
    assert results(undisturbed)["arguments"]["training"]["output_dir"] == "whole"


def _full(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.mark.promise("Files", "A run with `--overwrite-output-dir` that fails leaves the old one")
@pytest.mark.parametrize("failing", ["optimizer", "saving", "moving", "learning_rate"])
def test_an_overwriting_run_that_fails_leaves_the_old_one(undisturbed, order, failing, monkeypatch):
    before = snapshot(undisturbed)
    options = {**OTHER, "save_strategy": "no" if failing != "optimizer" else "steps"}
    if failing == "learning_rate":
        options |= {"learning_rate": 1e30, "optim": "sgd"}
    else:
        target = {"saving": "transformers.Trainer._save", "moving": "hf_posenc.files.swap_in"}
        target["optimizer"] = "transformers.Trainer._save_optimizer_and_scheduler"
        monkeypatch.setattr(target[failing], _full)
    with pytest.raises(UserError, match="No space left|diverged") as caught:
        train(undisturbed, **order, **options, overwrite_output_dir=True)
    assert "no checkpoint had been saved. The run in" in str(caught.value)
    assert snapshot(undisturbed) == before
    assert not (undisturbed / ".earlier").exists()


@pytest.mark.promise("Files", "A model is replaced by a complete one or not at all")
def test_what_is_replaced_is_whole_whichever_move_fails(tmp_path, monkeypatch):
    replace = os.replace
    for failing in range(20):
        folder, new = tmp_path / f"run{failing}", tmp_path / f"new{failing}"
        for place, names in ((folder, "config.json a b notes.txt runs/1"), (new, "config.json b c runs/2")):
            (place / "runs").mkdir(parents=True)
            for name in names.split():
                (place / name).write_text(str(place))
        before, arriving, calls = snapshot(folder), snapshot(new), []

        def fails_once(source, target, failing=failing, calls=calls):
            calls.append(source)
            if len(calls) == failing + 1:
                raise KeyboardInterrupt
            replace(source, target)

        monkeypatch.setattr(os, "replace", fails_once)
        try:
            swap_in(new, folder, ["config.json", "a", "b"])
        except KeyboardInterrupt:
            assert (snapshot(folder), snapshot(new)) == (before, arriving)
        else:
            assert failing == 7  # three left, four came
            kept = {name: before[name] for name in ("notes.txt", "runs/1")}
            assert snapshot(folder) == {**kept, **arriving}
            break
        assert not list(folder.glob(".replaced-*"))


def test_a_bad_option_leaves_the_run_that_would_be_replaced(undisturbed, order):
    before = snapshot(undisturbed)
    with pytest.raises(UserError, match="is unknown"):
        train(undisturbed, **order, overwrite_output_dir=True, position_embedding_type="wavy")
    assert snapshot(undisturbed) == before


def test_a_folder_with_other_files_is_used(order, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    train(tmp_path / "run", **order, max_train_samples=32)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


@pytest.mark.promise("Files", "A run whose end can't be written changes nothing")
@pytest.mark.parametrize("failing", ["save_model", "results.json"])
def test_if_the_end_cannot_be_written_nothing_has_changed(undisturbed, order, failing, monkeypatch):
    before = snapshot(undisturbed)
    target = "transformers.Trainer.save_model" if failing == "save_model" else "hf_posenc.files.write_json"
    monkeypatch.setattr(target, _full)
    with pytest.raises(UserError, match=r"failed: No space left on device. Make room .*checkpoint-20"):
        train(undisturbed, **order, **{**OPTIONS, "save_strategy": "no"}, resume_from_checkpoint="true")
    assert snapshot(undisturbed) == before


@pytest.mark.slow
def test_checkpoints_go_when_training_has_ended_and_stay_on_request(order, tmp_path):
    options = {**order, **OPTIONS, "do_eval": True, "eval_strategy": "steps", "eval_steps": 4}
    kept = train(tmp_path / "kept", **options, keep_checkpoints=True).output_dir
    assert [path.name for path in checkpoints(kept)] == [f"checkpoint-{step}" for step in (4, 8, 12, 16, 20)]
    gone = train(tmp_path / "gone", **options, keep_checkpoints=False).output_dir
    assert not [path for path in gone.rglob("*") if path.suffix in (".pt", ".pth") or "checkpoint" in path.name]
    assert_same_weights(kept, gone)  # the best ones, which were read from a checkpoint
    assert results(gone)["best"] == results(kept)["best"]
    assert not RunArguments(output_dir=str(tmp_path)).keep_checkpoints


def test_an_older_checkpoint_stays_until_the_next_is_whole(order, tmp_path, monkeypatch):
    options = {**order, **OPTIONS, "save_total_limit": 1, "resume_from_checkpoint": "true"}
    saved, describe = [], callbacks.results_of

    def killed(run, *args):
        saved.append(sorted(path.name for path in checkpoints(tmp_path / "run")))
        if len(saved) in (2, 3):
            raise MemoryError
        return describe(run, *args)

    monkeypatch.setattr(callbacks, "results_of", killed)
    for _ in range(2):
        with pytest.raises(MemoryError):
            train(tmp_path / "run", **options)
        assert last_complete_checkpoint(tmp_path / "run").name == "checkpoint-4"
    train(tmp_path / "run", **options, keep_checkpoints=True)
    assert saved[:4] == [["checkpoint-4"], *[["checkpoint-4", "checkpoint-8"]] * 3]
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-20"]
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint-20"):
        assert results(folder)["arguments"]["training"]["save_total_limit"] == 1


def test_what_is_set_aside_comes_back_and_is_never_lost(tmp_path):
    def make(step, content):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model").write_text(content)

    def names():
        return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("model"))

    make(4, "first")
    make(8, "first")

    @set_aside(tmp_path)
    def fail():
        assert names() == [".earlier/checkpoint-4/model", ".earlier/checkpoint-8/model"]
        make(4, "half written")
        raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert names() == ["checkpoint-4/model", "checkpoint-8/model"]
    assert (tmp_path / "checkpoint-4" / "model").read_text() == "first"
    with set_aside(tmp_path):
        make(6, "second, killed")
    with set_aside(tmp_path):  # a third try: `save_run` deletes all of them when it has ended
        assert names() == [f".earlier/checkpoint-{step}/model" for step in (4, 6, 8)]


@pytest.mark.parametrize("strategy", ["every_save", "checkpoint", "all_checkpoints"])
def test_a_run_is_pushed_when_it_has_ended(tmp_path, strategy):
    with pytest.raises(UserError, match=f"--hub-strategy {strategy} would push half a run"):
        RunArguments(output_dir=str(tmp_path), push_to_hub=True, hub_strategy=strategy)
    assert RunArguments(output_dir=str(tmp_path), push_to_hub=True).hub_strategy == "end"


def test_each_node_that_saves_deletes_its_older_checkpoints(tmp_path, monkeypatch):
    training = RunArguments(output_dir=str(tmp_path), save_on_each_node=True, save_total_limit=1)
    monkeypatch.setattr(RunArguments, "process_index", 8)  # the first of the second node
    monkeypatch.setattr(callbacks, "card_of", lambda *_: "")
    monkeypatch.setattr(callbacks, "write_trained_on", lambda *_: None)
    monkeypatch.setattr(callbacks, "results_of", lambda *_: {"arguments": {"training": {}}})
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
    described, now = callbacks.DescribeCheckpoints(None), (training, TrainerState(global_step=4), TrainerControl())
    described.on_train_begin(*now)
    assert training.save_total_limit is None  # the Trainer would delete them before the new one is whole
    described.on_save(*now)
    described.on_train_end(*now)
    assert training.save_total_limit == 1
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-4"]


def test_a_checkpoint_that_is_written_again_is_whole_only_at_its_end(order, tmp_path, monkeypatch):
    options = {**order, **OPTIONS, "max_steps": 8, "keep_checkpoints": True}
    train(tmp_path / "run", **options)
    monkeypatch.setattr(callbacks, "results_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", **options, resume_from_checkpoint=str(tmp_path / "run/checkpoint-4"), weight_decay=0.5)
    assert last_complete_checkpoint(tmp_path / "run").name == "checkpoint-4"


def test_a_run_that_has_ended_is_not_begun_anew_for_want_of_its_checkpoints(order, tmp_path):
    options = {**order, **OPTIONS, "max_steps": 4, "keep_checkpoints": False}
    run = train(tmp_path / "run", **options).output_dir
    before = snapshot(run)
    with pytest.raises(UserError, match=r"has ended, and there is no checkpoint .*--keep-checkpoints.*--model-name-or"):
        train(run, **options, resume_from_checkpoint="true")
    assert snapshot(run) == before
    train(run, **options, resume_from_checkpoint="true", overwrite_output_dir=True)


def test_an_interrupted_run_keeps_its_checkpoints(order, tmp_path, press):
    press(7)
    with pytest.raises(Interrupted, match=r"checkpoint-7'"):
        train(tmp_path / "stopped", **order, **OPTIONS, keep_checkpoints=False)
    assert [path.name for path in checkpoints(tmp_path / "stopped")] == ["checkpoint-4", "checkpoint-7"]


@pytest.mark.promise("Files", "Two runs never write into one folder")
def test_two_trainings_never_write_into_one_folder(tmp_path, order):
    with (
        folder_lock(tmp_path),
        pytest.raises(UserError, match=rf"process {os.getpid()} on .*, since .*, is training into it. Name another"),
    ):
        train(tmp_path, **order, max_steps=1)
    assert not (tmp_path / "config.json").exists()
    train(tmp_path, **order, max_steps=1)
    assert not (tmp_path / ".lock").exists()


@pytest.mark.promise("Numbers", "Training that diverges stops, and leaves no checkpoint of NaN")
@pytest.mark.parametrize("evaluated", [True, False])
def test_a_training_that_diverges_ends_and_leaves_no_checkpoint_without_numbers(tmp_path, order, evaluated):
    options = {**order, "do_eval": evaluated, "save_strategy": "epoch", "num_train_epochs": 4, "optim": "sgd"}
    options |= {"learning_rate": 1e30, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 1000}
    message = r"diverged: after step \d+ \d+ weights hold NaN or infinity.*--learning-rate below 1e\+30"
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", **options)
    assert not (tmp_path / "run" / "results.json").exists()
    assert all(
        bool(value.isfinite().all())
        for checkpoint in (tmp_path / "run").glob("checkpoint-*")
        for value in load_file(checkpoint / "model.safetensors").values()
    )


@pytest.mark.promise("Numbers", "The last checkpoint before training diverged is kept and named")
@pytest.mark.parametrize("save_steps", [4, 100])
def test_the_last_checkpoint_before_it_diverged_is_kept_and_named(tmp_path, order, call_at, monkeypatch, save_steps):
    call_at("on_step_end", 6, lambda model: next(model.parameters()).data.fill_(float("nan")))
    options = {**order, **OPTIONS, "save_steps": save_steps, "save_total_limit": 1}
    left = "the newest .*checkpoint-4'. Resuming there would diverge again" if save_steps == 4 else "no checkpoint had"
    with pytest.raises(Diverged, match=f"What is left: {left}"):
        train(tmp_path / "run", **options)
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-4"] * (save_steps == 4)
    monkeypatch.undo()
    if save_steps == 4:
        train(tmp_path / "run", **options, resume_from_checkpoint="true")


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    """Whoever writes them: a loop of one's own calls `save_run`, too."""
    fitted = fit(["good", "bad"] * 8, ["a", "b"] * 8, max_steps=1, validation_split_percentage=0, use_cpu=True)
    next(fitted.model_.parameters()).data.fill_(float("nan"))
    with pytest.raises(Diverged, match="in model.safetensors holds NaN or infinity"):
        fitted.save(tmp_path / "model")
    assert not list((tmp_path / "model").iterdir())


def test_a_training_that_diverges_ends_before_it_is_scored(tmp_path, order):
    """At the first evaluation, after 10 of 40 steps, and not when the model is saved at the end."""
    options = {"do_eval": True, "eval_strategy": "epoch", "save_strategy": "no", "num_train_epochs": 4}
    with pytest.raises(UserError, match="diverged: after step 10 "):
        train(tmp_path / "run", **order, **options, optim="sgd", learning_rate=1e30)


def test_what_json_has_no_number_for_is_null(tmp_path):
    write_json(tmp_path / "a.json", {"a": [float("nan"), 1.5, (float("inf"),)], "b": {"c": float("-inf")}})
    assert json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail) == {
        "a": [None, 1.5, [None]],
        "b": {"c": None},
    }
