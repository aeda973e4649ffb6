"""Somebody without hf_posenc loads a checkpoint with trust_remote_code=True and gets the numbers of its author."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_code_harness import (
    BATCH,
    FEW_PAIRS,
    HALVES,
    HEAD,
    HEADS,
    HOOKS,
    OWN,
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
from transformers import pipeline

import hf_posenc
from hf_posenc.model.configuration_posenc import AUTO_MAP

pytestmark = pytest.mark.slow  # three processes; one checkpoint is loaded so by the quick tests of hub/


def test_strangers_have_no_hf_posenc_and_the_second_the_oldest_transformers_that_will_do(
    strangers: tuple[Report, Report, Report],
) -> None:
    for stranger in strangers[:2]:
        assert stranger.hidden == "import of hf_posenc halted; None in sys.modules"
    # The control of test_remote_floor.py: it is the version that it fails for.
    assert strangers[1].jobs
    assert not [job for job, answer in strangers[1].jobs.items() if "error" in answer]


def test_a_stranger_is_asked_for_trust(first_stranger: Report) -> None:
    # The control of all that follows: the code does come from the folder.
    assert "trust_remote_code=True" in first_stranger.jobs["no trust"]["message"]


def test_every_model_class_is_tested() -> None:
    public = {name for name in hf_posenc.__all__ if name == "PosEncModel" or name.startswith("PosEncFor")}
    assert public == set(HEADS)
    assert {auto: name.rpartition(".")[2] for auto, name in AUTO_MAP.items()} == {
        "AutoConfig": "PosEncConfig",
        **{auto: head for head, auto in HEADS.items()},
    }


@pytest.mark.parametrize(
    ("scheme", "head", "source", "who"),
    [
        (*pair, source, who)
        for pair, sources in SOURCES.items()
        for source in sources
        for who in ((0, 1) if pair in FEW_PAIRS else (0,))
    ],
)
def test_a_stranger_gets_the_same_outputs_and_saves_a_complete_folder(
    checkpoints: Checkpoints, strangers: tuple[Report, Report, Report], scheme: str, head: str, source: str, who: int
) -> None:
    """The second has what the first saved again, without the original."""
    job = f"{scheme}/{head}/{source}"
    answer = strangers[who].answer(job)
    assert answer["class"] == head
    assert answer["module"].startswith("transformers_modules.")
    assert answer["missing"] == answer["unexpected"] == []
    assert not answer["training"]
    assert_same_outputs(strangers[who].outputs(job), checkpoints.expected(scheme, head))
    code = {name: text.encode() for name, text in tiny_config(scheme).code_files().items()}
    for folder in (checkpoints.folder(scheme, head), Path(answer["saved"])):
        assert {path.name: path.read_bytes() for path in folder.glob("*.py")} == code
        # Nothing in it points to where it came from.
        assert json.loads((folder / "config.json").read_text())["auto_map"] == AUTO_MAP


def test_what_borrows_its_code_has_its_own_when_saved_again(
    checkpoints: Checkpoints, strangers: tuple[Report, Report, Report]
) -> None:
    # The second stranger has no access to the repository that the code came from.
    for stranger in strangers[:2]:
        assert stranger.answer("borrower")["module"].startswith("transformers_modules.")
        assert_same_outputs(stranger.outputs("borrower"), checkpoints.expected("t5"))


@pytest.mark.parametrize(("scheme", "dtype"), HALVES)
def test_a_stranger_gets_the_same_outputs_in_half_precision(
    checkpoints: Checkpoints, first_stranger: Report, scheme: str, dtype: str
) -> None:
    job = f"{scheme}/{dtype}"
    assert first_stranger.answer(job)["dtypes"] == [f"torch.{dtype}"]
    assert_same_outputs(first_stranger.outputs(job), checkpoints.expected(scheme, HEAD, dtype))


def test_unknown_keys_change_nothing_for_a_stranger(checkpoints: Checkpoints, first_stranger: Report) -> None:
    assert_same_outputs(first_stranger.outputs("of the future"), checkpoints.expected("t5"))


@pytest.mark.parametrize("scheme", HOOKS)
def test_a_configuration_alone_reaches_a_stranger_and_builds_a_new_model(first_stranger: Report, scheme: str) -> None:
    answer = first_stranger.answer(f"{scheme}/config")
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
    logits = first_stranger.outputs(f"{scheme}/config")["logits"]
    assert logits.isfinite().all()
    assert logits.shape == (*BATCH["input_ids"].shape, 100)


@pytest.mark.parametrize(("task", "head"), PIPELINES.items())
def test_a_pipeline_gives_a_stranger_the_same_results(first_stranger: Report, task: str, head: str) -> None:
    answer = first_stranger.answer(task)
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
@pytest.mark.parametrize("who", [0, 1, 2], ids=["first", "second", "local"])
@pytest.mark.parametrize("name", OWN)
def test_everyone_gets_the_same_outputs_of_a_users_own_scheme(
    own: dict[str, Any], strangers: tuple[Report, Report, Report], name: str, who: int, source: str
) -> None:
    report = strangers[who]
    assert (report.hidden is None) == (who == 2)
    assert_same_outputs(report.outputs(f"own {name}/{source}"), own[name][1])
    module = report.answer(f"own {name}/{source}")["module"]
    assert module.startswith("hf_posenc." if who == 2 else "transformers_modules.")


@pytest.mark.parametrize("name", OWN)
def test_a_configuration_alone_builds_a_new_model_with_a_users_own_scheme(first_stranger: Report, name: str) -> None:
    assert first_stranger.answer(f"own {name}/config")["class"] == HEAD


@pytest.mark.parametrize("name", OWN)
def test_where_hf_posenc_is_installed_the_code_of_a_users_own_scheme_needs_trust(
    strangers: tuple[Report, Report, Report], name: str
) -> None:
    refused = strangers[2].jobs[f"own {name}/no trust"]
    assert refused["error"] == "ValueError"
    assert "its code (recency.Recency) comes with the checkpoint" in refused["message"]
    assert "trust_remote_code=True" in refused["message"]
    assert "register_scheme(Scheme, 'recency')" in refused["message"]
