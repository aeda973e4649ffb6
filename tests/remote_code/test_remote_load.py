"""Somebody without hf_posenc loads a checkpoint with trust_remote_code=True and gets the numbers of its author."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_code_harness import (
    BATCH,
    HALVES,
    HEAD,
    HEADS,
    HOOKS,
    OWN,
    PAIRS,
    PIPELINES,
    SOURCES,
    TEXTS,
    Checkpoints,
    Report,
    assert_same_outputs,
    tiny_config,
    tiny_model,
    tiny_tokenizer,
)
from safetensors.torch import load_file
from transformers import pipeline

import hf_posenc
from hf_posenc.model.configuration_posenc import AUTO_MAP
from hf_posenc.schemes.support import code_files

pytestmark = pytest.mark.slow  # a process; one checkpoint is loaded so by the quick tests of hub/


def test_a_stranger_has_no_hf_posenc_and_is_asked_for_trust(stranger: Report) -> None:
    # The control of all that follows: the code does come from the folder.
    assert stranger.hidden == "import of hf_posenc halted; None in sys.modules"
    assert [job for job, answer in stranger.jobs.items() if "error" in answer] == ["no trust"]
    assert "trust_remote_code=True" in stranger.jobs["no trust"]["message"]


def test_every_model_class_is_tested() -> None:
    public = {name for name in hf_posenc.__all__ if name == "PosEncModel" or name.startswith("PosEncFor")}
    assert public == set(HEADS)
    assert {auto: name.rpartition(".")[2] for auto, name in AUTO_MAP.items()} == {
        "AutoConfig": "PosEncConfig",
        **{auto: head for head, auto in HEADS.items()},
    }


def assert_complete(saved: Path, original: Path) -> None:
    """It holds what the original does, and nothing in it points to where it came from."""
    code, again = ({path.name: path.read_bytes() for path in folder.glob("*.py")} for folder in (original, saved))
    assert again == code
    assert json.loads((saved / "config.json").read_text())["auto_map"] == AUTO_MAP
    weights, expected = (load_file(folder / "model.safetensors") for folder in (saved, original))
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("scheme", "head", "source"), [(*pair, source) for pair in PAIRS for source in SOURCES[pair]])
def test_a_stranger_gets_the_same_outputs_and_saves_a_complete_folder(
    checkpoints: Checkpoints, stranger: Report, scheme: str, head: str, source: str
) -> None:
    job, folder = f"{scheme}/{head}/{source}", checkpoints.folder(scheme, head)
    answer = stranger.answer(job)
    assert answer["class"] == head
    assert answer["module"].startswith("transformers_modules.")
    assert answer["missing"] == answer["unexpected"] == []
    assert not answer["training"]
    assert_same_outputs(stranger.outputs(job), checkpoints.expected(scheme, head))
    assert {path.name: path.read_text() for path in folder.glob("*.py")} == code_files(tiny_config(scheme))
    assert_complete(Path(answer["saved"]), folder)


def test_what_borrows_its_code_has_its_own_when_saved_again(checkpoints: Checkpoints, stranger: Report) -> None:
    answer = stranger.answer("borrower")
    assert answer["module"].startswith("transformers_modules.")
    assert_same_outputs(stranger.outputs("borrower"), checkpoints.expected("t5"))
    assert_complete(Path(answer["saved"]), checkpoints.folder("t5"))


@pytest.mark.parametrize(("scheme", "dtype"), HALVES)
def test_a_stranger_gets_the_same_outputs_in_half_precision(
    checkpoints: Checkpoints, stranger: Report, scheme: str, dtype: str
) -> None:
    job = f"{scheme}/{dtype}"
    assert stranger.answer(job)["dtypes"] == [f"torch.{dtype}"]
    assert_same_outputs(stranger.outputs(job), checkpoints.expected(scheme, HEAD, dtype))


def test_unknown_keys_change_nothing_for_a_stranger(checkpoints: Checkpoints, stranger: Report) -> None:
    assert_same_outputs(stranger.outputs("of the future"), checkpoints.expected("t5"))


@pytest.mark.parametrize("scheme", HOOKS)
def test_a_configuration_alone_reaches_a_stranger_and_builds_a_new_model(stranger: Report, scheme: str) -> None:
    answer = stranger.answer(f"{scheme}/config")
    assert answer["module"].startswith("transformers_modules.")
    with torch.device("meta"):  # the configuration is that of a model
        built = hf_posenc.PosEncModel(tiny_config(scheme))
    mine = json.loads(built.config.to_json_string(use_diff=False))
    theirs = {name: answer["config"].get(name) for name in mine}
    # What a model's checkpoint says beyond its configuration.
    for name in ("architectures", "dtype", "_name_or_path", "transformers_version"):
        mine.pop(name, None)
        theirs.pop(name, None)
    assert theirs == mine
    assert answer["class"] == "PosEncForMaskedLM"
    logits = stranger.outputs(f"{scheme}/config")["logits"]
    assert logits.isfinite().all()
    assert logits.shape == (*BATCH["input_ids"].shape, 100)


@pytest.mark.parametrize(("task", "head"), PIPELINES.items())
def test_a_pipeline_gives_a_stranger_the_same_results(stranger: Report, task: str, head: str) -> None:
    answer = stranger.answer(task)
    assert answer["class"] == head
    assert answer["module"].startswith("transformers_modules.")
    # The author's: one text at a time, so no padding, with a tokenizer and a model made by hand.
    pipe = pipeline(task, model=tiny_model("t5", head), tokenizer=tiny_tokenizer())
    for their_results, expected in zip(answer["found"], [pipe(text) for text in TEXTS], strict=True):
        their_results, expected = ([each] if isinstance(each, dict) else each for each in (their_results, expected))
        assert len(their_results) == len(expected) > 0
        for their_result, our_result in zip(their_results, expected, strict=True):
            assert {**their_result, "score": 0} == {**our_result, "score": 0}
            assert their_result["score"] == pytest.approx(float(our_result["score"]), abs=1e-5)


@pytest.mark.parametrize("source", ["folder", "hub"])
@pytest.mark.parametrize("name", OWN)
def test_a_users_own_scheme_reaches_a_stranger_too(
    own: dict[str, Any], stranger: Report, name: str, source: str
) -> None:
    folder, expected = own[name]
    answer = stranger.answer(f"own {name}/{source}")
    assert answer["module"].startswith("transformers_modules.")
    assert_same_outputs(stranger.outputs(f"own {name}/{source}"), expected)
    assert_complete(Path(answer["saved"]), folder)
    assert stranger.answer(f"own {name}/config")["class"] == HEAD
