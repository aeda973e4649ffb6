"""Strangers load a checkpoint by its own code; who has hf_posenc loads it by the local classes, without a question.

However a checkpoint gets into memory, the numbers are those that were saved.
"""

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import hf_posenc
from tests.support.remote_code import (
    ALL_HEADS,
    AUTO_MAP,
    BATCH,
    BUILTIN,
    HEAD,
    HEADS,
    MINIMUM_TRANSFORMERS,
    OWN,
    PAIRS,
    TEXTS,
    Checkpoints,
    Report,
    assert_same_outputs,
    borrower,
    model_job,
    outputs,
    put_in_hub_cache,
    run_clean,
)

REPOSITORY = f"me/t5.{HEAD}-v1"


@pytest.fixture(scope="module")
def stranger(checkpoints: Checkpoints, own: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A process without hf_posenc, whose transformers says it is the oldest that will do.

    It loads every checkpoint, and saves it again.
    """
    place = tmp_path_factory.mktemp("stranger")
    folder = checkpoints.folder("t5")
    put_in_hub_cache(folder, place / "home", REPOSITORY)
    folders = {f"{scheme}/{head}": checkpoints.folder(scheme, head) for scheme, head in PAIRS}
    jobs = {name: model_job(path, HEADS[name.partition("/")[2]], place / name) for name, path in folders.items()}
    jobs |= {f"own {name}": model_job(path, save=place / f"own {name}") for name, (path, _) in own.items()}
    jobs["hub"] = model_job(REPOSITORY, save=place / "hub")
    jobs["borrower"] = model_job(borrower(folder, place / "without code", REPOSITORY), save=place / "borrower")
    jobs["no trust"] = model_job(folder, trust=False)
    jobs["pipeline"] = {"task": "text-classification", "texts": TEXTS, "load": str(folder)}
    report = run_clean(jobs, place / "work", place / "home")
    for name, job in jobs.items():
        report.jobs[name]["saved"] = job.get("save")
    return report


@pytest.mark.slow  # a process; one checkpoint is loaded so by schemes/test_conformance.py
def test_a_stranger_has_no_hf_posenc_and_is_asked_for_trust(stranger):
    # The control of all that follows: the code does come from the folder.
    assert stranger.hidden == "import of hf_posenc halted; None in sys.modules"
    assert [job for job, answer in stranger.jobs.items() if "error" in answer] == ["no trust"]
    assert "trust_remote_code=True" in stranger.jobs["no trust"]["error"]


def test_every_model_class_is_tested():
    public = {name for name in hf_posenc.__all__ if name == "PosEncModel" or name.startswith("PosEncFor")}
    assert public == set(HEADS)


@pytest.mark.slow
@pytest.mark.parametrize("job", [*(f"{s}/{h}" for s, h in PAIRS), "hub", "borrower", *(f"own {name}" for name in OWN)])
def test_a_stranger_gets_the_same_outputs_and_saves_a_complete_folder(checkpoints, own, stranger, job):
    """Nothing in what is saved points to where it came from."""
    scheme, _, head = (job if "/" in job else f"t5/{HEAD}").partition("/")
    if job.startswith("own "):
        folder, expected = own[job.removeprefix("own ")]
    else:
        folder, expected = checkpoints.folder(scheme, head), checkpoints.expected(scheme, head)
    answer = stranger.answer(job)
    assert (answer["class"], answer["wrong"], answer["training"]) == (head, [], False)
    assert_same_outputs(stranger.outputs(job), expected)
    saved = Path(answer["saved"])
    code, again = ({path.name: path.read_bytes() for path in place.glob("*.py")} for place in (folder, saved))
    assert again == code
    assert json.loads((saved / "config.json").read_text())["auto_map"] == AUTO_MAP
    weights, written = (load_file(place / "model.safetensors") for place in (saved, folder))
    torch.testing.assert_close(weights, written, rtol=0, atol=0)


@pytest.mark.slow
def test_a_pipeline_gives_a_stranger_the_same_results(checkpoints, stranger):
    pipe = transformers.pipeline("text-classification", model=str(checkpoints.folder("t5")))
    for theirs, text in zip(stranger.answer("pipeline")["results"], TEXTS, strict=True):
        (expected,) = pipe(text)  # one text at a time, so no padding
        assert theirs == {**expected, "score": pytest.approx(expected["score"], abs=1e-5)}


@pytest.fixture
def no_remote_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question to the user, or code that comes from a checkpoint, fails the test."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"asked the user, or ran code from a checkpoint: {args}")

    monkeypatch.setattr("builtins.input", refuse)
    monkeypatch.setattr("transformers.dynamic_module_utils.get_class_in_module", refuse)


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, memory that nobody wrote to is NaN (or the largest integer), wherever PyTorch hands it out."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        assert torch.empty_like(torch.zeros(8)).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def loaded(checkpoints: Checkpoints, scheme: str, head: str, **options: Any) -> Any:
    return getattr(transformers, HEADS[head]).from_pretrained(checkpoints.folder(scheme, head), **options)


# Transformers builds on the meta device and fills in what the file has. What the file doesn't have must come from the
# code: a buffer that isn't saved, or a constant kept as a tensor, would be whatever was in memory before.
@pytest.mark.usefixtures("no_remote_code")
@pytest.mark.parametrize(("scheme", "head"), PAIRS)
def test_memory_that_nobody_wrote_to_is_never_read(checkpoints, scheme, head):
    with poisoned_memory():
        model = loaded(checkpoints, scheme, head)
        assert type(model) is getattr(hf_posenc, head)
        assert type(model.config) is hf_posenc.PosEncConfig
        assert not list(model.buffers())
        assert not any(parameter.isnan().any() for parameter in model.parameters())
        actual = outputs(model, BATCH)
    assert_same_outputs(actual, checkpoints.expected(scheme, head))


@pytest.mark.parametrize(("scheme", "head"), ALL_HEADS)
def test_weights_that_a_checkpoint_lacks_are_initialised(checkpoints, scheme, head):
    # A head on an encoder that was saved without one: what is new starts as in a new model, and nothing else changes.
    saved = load_file(checkpoints.folder(scheme, "PosEncModel") / "model.safetensors")
    with poisoned_memory():
        model = getattr(hf_posenc, head).from_pretrained(checkpoints.folder(scheme, "PosEncModel"))
    weights = model.state_dict()
    for name, weight in saved.items():
        torch.testing.assert_close(weights[name if head == "PosEncModel" else f"model.{name}"], weight, rtol=0, atol=0)
    for name, weight in weights.items():
        if not name.startswith("model.") and name not in saved:
            assert weight.isfinite().all()
            assert weight.abs().max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", BUILTIN)
def test_a_scheme_whose_weights_are_missing_starts_as_a_new_one(checkpoints, tmp_path, scheme):
    model = hf_posenc.PosEncModel.from_pretrained(checkpoints.folder(scheme))
    body = {name: weight for name, weight in model.state_dict().items() if not name.startswith("position.")}
    model.save_pretrained(tmp_path, state_dict=body)
    with poisoned_memory():
        again = hf_posenc.PosEncModel.from_pretrained(tmp_path)
    fresh = hf_posenc.PosEncModel(model.config).state_dict()
    for name, weight in again.state_dict().items():
        assert weight.isfinite().all(), name
        if name in body:
            assert torch.equal(weight, body[name]), name
        elif not fresh[name].any():
            assert not weight.any(), name
        elif weight.dim() > 1:
            assert 0 < weight.std() < 5, name


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "head"), [("deberta", HEAD), ("t5", "PosEncForMultipleChoice")])
def test_weights_left_on_disk_give_the_same_outputs(checkpoints, tmp_path, scheme, head):
    # Transformers wants something in memory: the last layer. All else is on disk, the scheme too.
    device_map = {"model": "disk", "classifier": "cpu"}
    model = loaded(checkpoints, scheme, head, device_map=device_map, offload_folder=tmp_path)
    assert any(parameter.is_meta for parameter in model.parameters())
    assert all(parameter.is_meta for parameter in model.base_model.position.parameters())
    assert_same_outputs(outputs(model, BATCH), checkpoints.expected(scheme, head))


@pytest.mark.parametrize("options", [{}, {"trust_remote_code": True}, {"trust_remote_code": False}], ids=str)
@pytest.mark.usefixtures("no_remote_code")
def test_the_local_classes_load_what_borrows_its_code(checkpoints, tmp_path, options):
    folder = borrower(checkpoints.folder("t5", "PosEncModel"), tmp_path / "borrower", "me/code")
    model = transformers.AutoModel.from_pretrained(folder, **options)
    assert type(model) is hf_posenc.PosEncModel
    model.save_pretrained(tmp_path / "again")
    assert "me/code" not in (tmp_path / "again" / "config.json").read_text()
    assert (tmp_path / "again" / "modeling_posenc.py").exists()


def test_the_refusal_of_remote_code_is_real(no_remote_code, checkpoints):
    # The control of these: what `no_remote_code` watches is what a checkpoint's own code comes through.
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    with pytest.raises(AssertionError, match="code from a checkpoint"):
        get_class_from_dynamic_module("modeling_posenc.PosEncModel", checkpoints.folder("t5", "PosEncModel"))


def test_under_a_transformers_that_is_too_old_one_error_names_the_floor(monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"transformers": "5.2.0"}.get(name) or real(name))
    module = hf_posenc.PosEncConfig.__module__
    monkeypatch.delitem(sys.modules, module)
    message = rf"(?s)transformers>={MINIMUM_TRANSFORMERS} is required.*5\.2\.0.*pip install -U"
    with pytest.raises(ImportError, match=message) as refused:
        importlib.import_module(module)
    assert (refused.value.__cause__ or refused.value.__context__) is None
