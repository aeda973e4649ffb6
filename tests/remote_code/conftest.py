"""Fixtures of the remote-code tests: checkpoints saved once, and a stranger who loads them all."""

from pathlib import Path
from typing import Any

import pytest
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
    borrower,
    changed,
    model_job,
    outputs,
    own_schemes,
    put_in_hub_cache,
    run_clean,
    tiny_model,
)
from torch import Tensor

import hf_posenc
from hf_posenc.model.configuration_posenc import MINIMUM_TRANSFORMERS


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Tensor]]]:
    """Checkpoints of schemes of a user's own, with what their author got."""
    root = tmp_path_factory.mktemp("own")
    checkpoints = {}
    with own_schemes(tmp_path_factory.mktemp("author")):
        for name, scheme in OWN.items():
            model = tiny_model(scheme, HEAD)
            model.save_pretrained(root / name)
            checkpoints[name] = root / name, outputs(model, BATCH)
    return checkpoints


@pytest.fixture(scope="session")
def stranger(
    checkpoints: Checkpoints, own: dict[str, tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Report:
    """A process without hf_posenc, whose transformers says it is the oldest that will do.

    It loads every checkpoint, from its folder and from a Hub cache, and saves it again.
    """
    place = tmp_path_factory.mktemp("stranger")
    home, jobs = place / "home", []
    for scheme, head in PAIRS:
        folder, name = checkpoints.folder(scheme, head), f"{scheme}/{head}"
        repository = f"me/{scheme}.{head}-v1"
        put_in_hub_cache(folder, home, repository)
        for source in SOURCES[scheme, head]:
            load = folder if source == "folder" else repository
            jobs.append(model_job(f"{name}/{source}", load, HEADS[head], place / "again" / source / name))
    for scheme, dtype in HALVES:
        jobs.append(model_job(f"{scheme}/{dtype}", checkpoints.folder(scheme), dtype=dtype))
    for task, head in PIPELINES.items():
        job = {"kind": "pipeline", "id": task, "task": task, "texts": TEXTS}
        jobs.append({**job, "load": str(checkpoints.folder("t5", head))})
    folder = checkpoints.folder("t5")
    # A checkpoint whose code is another repository's, as `auto_map` allows.
    without_code = borrower(folder, place / "borrower", f"me/t5.{HEAD}-v1")
    jobs.append(model_job("borrower", without_code, save=place / "again" / "borrower"))
    of_the_future = changed(folder, place / "of the future", hidden_sise=7, posenc_version="9999.1.0")
    jobs.append(model_job("of the future", of_the_future))
    jobs.append({"kind": "model", "id": "no trust", "auto_class": "AutoModel", "load": str(folder)})
    for scheme in HOOKS:
        bare = place / "configs" / scheme
        hf_posenc.PosEncConfig.from_pretrained(checkpoints.folder(scheme)).save_pretrained(bare)
        job = {"kind": "config", "id": f"{scheme}/config", "auto_class": "AutoModelForMaskedLM"}
        jobs.append({**job, "load": str(bare)})
    for name, (folder, _) in own.items():
        put_in_hub_cache(folder, home, f"me/{name}")
        for source, load in (("folder", folder), ("hub", f"me/{name}")):
            jobs.append(model_job(f"own {name}/{source}", load, save=place / "own again" / source / name))
        jobs.append({"kind": "config", "id": f"own {name}/config", "load": str(folder), "auto_class": HEADS[HEAD]})
    return run_clean(jobs, place / "work", home, pretend_transformers_is=MINIMUM_TRANSFORMERS)
