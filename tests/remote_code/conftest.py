"""Fixtures of the remote-code tests: checkpoints saved once, and two strangers who load them all."""

import shutil
from typing import Any

import pytest
from remote_code_harness import (
    ALL_HEADS,
    DTYPES,
    FEW_PAIRS,
    HEAD,
    HEADS,
    HOOKS,
    PAIRS,
    PIPED,
    PIPELINES,
    SCHEMES,
    SOURCES,
    TEXTS,
    Checkpoints,
    Report,
    borrow_code,
    changed,
    put_in_hub_cache,
    run_clean,
)

import hf_posenc


def pytest_report_header() -> str:
    return f"hf_posenc under test: {hf_posenc.__file__}"


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


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
        folder, name = checkpoints.folder(scheme, head), f"{scheme}/{head}"
        put_in_hub_cache(folder, first_home, f"me/{scheme}.{head}-v1")
        for source in SOURCES[scheme, head]:
            load = str(folder) if source == "folder" else f"me/{scheme}.{head}-v1"
            again = str(place / "again" / source / name)
            job = {"kind": "model", "id": f"{name}/{source}", "auto_class": HEADS[head], "options": trusted}
            first.append({**job, "load": load, "save": again})
            second.append({**job, "load": again, "save": str(place / "thrice" / source / name)})
    for scheme, head in FEW_PAIRS:
        for dtype in DTYPES:
            options = {**trusted, "dtype": dtype}
            job = {"kind": "model", "id": f"{scheme}/{head}/{dtype}", "auto_class": HEADS[head], "options": options}
            first.append({**job, "load": str(checkpoints.folder(scheme, head))})
    for scheme, head in ALL_HEADS:
        for other in HEADS.values():
            # A multiple-choice checkpoint has a classifier of one row.
            options = {**trusted, "ignore_mismatched_sizes": True}
            job = {"kind": "model", "id": f"{scheme}/{head}/{other}", "auto_class": other, "options": options}
            first.append({**job, "load": str(checkpoints.folder(scheme, head))})
    for scheme, task in PIPED:
        folder = checkpoints.folder(scheme, PIPELINES[task])
        job = {"kind": "pipeline", "id": f"{scheme}/{task}", "task": task, "texts": TEXTS}
        first.append({**job, "load": str(folder)})
    folder = checkpoints.folder("t5")
    first.append({"kind": "tokenizer", "id": "tokenizer", "load": str(folder), "texts": TEXTS})
    # A checkpoint whose code is another repository's, as `auto_map` allows.
    shutil.copytree(folder, place / "borrower")
    borrow_code(place / "borrower", f"me/t5.{HEAD}-v1")
    job = {"kind": "model", "id": "borrower", "auto_class": HEADS[HEAD], "options": trusted}
    first.append({**job, "load": str(place / "borrower"), "save": str(place / "again" / "borrower")})
    second.append({**job, "load": str(place / "again" / "borrower")})
    of_the_future = changed(folder, place / "of the future", hidden_sise=7, posenc_version="9999.1.0")
    first.append({**job, "id": "of the future", "load": str(of_the_future)})
    first.append({"kind": "model", "id": "no trust", "auto_class": "AutoModel", "load": str(folder)})
    for scheme in SCHEMES:
        bare = place / "configs" / scheme
        hf_posenc.PosEncConfig.from_pretrained(checkpoints.folder(scheme)).save_pretrained(bare)
        first.append({"kind": "config", "id": f"{scheme}/config", "load": str(bare)})
        if scheme in HOOKS:
            job = {"kind": "config", "id": f"{scheme}/from_config", "auto_class": "AutoModelForMaskedLM"}
            first.append({**job, "load": str(bare)})
    reports = [run_clean(first, place / "first", first_home)]
    shutil.rmtree(first_home)
    reports.append(run_clean(second, place / "second", second_home))
    return reports[0], reports[1]


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
