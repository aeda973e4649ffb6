"""Fixtures of the remote-code tests: checkpoints saved once, and two strangers who load them all."""

import shutil
from typing import Any

import pytest
import torch
from remote_code_harness import (
    DTYPES,
    HEADS,
    PAIRS,
    PIPED,
    PIPELINES,
    SCHEMES,
    TEXTS,
    Checkpoints,
    Report,
    borrow_code,
    put_in_hub_cache,
    run_clean,
    save_checkpoints,
)

import hf_posenc


def pytest_report_header() -> str:
    return f"hf_posenc under test: {hf_posenc.__file__}"


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the clean process: the order of a sum may depend on it
    try:
        return save_checkpoints(tmp_path_factory.mktemp("checkpoints"))
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def strangers(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    """Two processes without hf_posenc, one after the other.

    The first loads every checkpoint, from its folder and from a Hub cache, and saves it again. The second has only what
    the first saved: another HF_HOME, and the first one's is gone.
    """
    place = tmp_path_factory.mktemp("strangers")
    first_home, second_home = place / "first_home", place / "second_home"
    trusted = {"trust_remote_code": True}
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    for scheme, head in PAIRS:
        auto_class = HEADS[head]
        name = f"{scheme}/{head}"
        folder = checkpoints.folder(scheme, head)
        repository = f"me/{scheme}.{head}-v1"
        put_in_hub_cache(folder, first_home, repository)
        for source, load in (("folder", str(folder)), ("hub", repository)):
            again = str(place / "again" / source / name)
            job = {"kind": "model", "id": f"{name}/{source}", "auto_class": auto_class, "options": trusted}
            first.append({**job, "load": load, "save": again})
            second.append({**job, "load": again, "save": str(place / "thrice" / source / name)})
        for dtype in DTYPES:
            options = {**trusted, "dtype": dtype}
            job = {"kind": "model", "id": f"{name}/{dtype}", "auto_class": auto_class, "options": options}
            first.append({**job, "load": str(folder)})
        for other in HEADS.values():
            # A multiple-choice checkpoint has a classifier of one row.
            options = {**trusted, "ignore_mismatched_sizes": True}
            job = {"kind": "model", "id": f"{name}/{other}", "auto_class": other, "options": options}
            first.append({**job, "load": str(folder)})
        first.append({"kind": "tokenizer", "id": f"{name}/tokenizer", "load": str(folder), "texts": TEXTS})
    for scheme, task in PIPED:
        folder = checkpoints.folder(scheme, PIPELINES[task])
        job = {"kind": "pipeline", "id": f"{scheme}/{task}", "task": task, "texts": TEXTS}
        first.append({**job, "load": str(folder)})
    for scheme in SCHEMES:
        # A checkpoint whose code is another repository's, as `auto_map` allows.
        borrower, again = place / "borrowers" / scheme, str(place / "again" / "borrower" / scheme)
        shutil.copytree(checkpoints.folder(scheme, "PosEncModel"), borrower)
        borrow_code(borrower, f"me/{scheme}.PosEncModel-v1")
        job = {"kind": "model", "id": f"{scheme}/borrower", "auto_class": "AutoModel", "options": trusted}
        first.append({**job, "load": str(borrower), "save": again})
        second.append({**job, "load": again})
    folder = checkpoints.folder(SCHEMES[0], "PosEncModel")
    first.append({"kind": "model", "id": "no trust", "auto_class": "AutoModel", "load": str(folder)})
    for scheme in SCHEMES:
        bare = place / "configs" / scheme
        checkpoints_config(checkpoints, scheme).save_pretrained(bare)
        first.append({"kind": "config", "id": f"{scheme}/config", "load": str(bare)})
        job = {"kind": "config", "id": f"{scheme}/from_config", "auto_class": "AutoModelForMaskedLM"}
        first.append({**job, "load": str(bare)})
    reports = [run_clean(first, place / "first", first_home)]
    shutil.rmtree(first_home)
    reports.append(run_clean(second, place / "second", second_home))
    return reports[0], reports[1]


def checkpoints_config(checkpoints: Checkpoints, scheme: str) -> hf_posenc.PosEncConfig:
    return hf_posenc.PosEncConfig.from_pretrained(checkpoints.folder(scheme, "PosEncModel"))


@pytest.fixture(scope="session")
def first_stranger(strangers: tuple[Report, Report]) -> Report:
    return strangers[0]


@pytest.fixture(scope="session")
def second_stranger(strangers: tuple[Report, Report]) -> Report:
    return strangers[1]


@pytest.fixture
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question to the user fails the test."""

    def refuse(prompt: str = "") -> str:
        raise AssertionError(f"the user was asked: {prompt}")

    monkeypatch.setattr("builtins.input", refuse)
