"""Fixtures of the remote-code tests: checkpoints saved once, and two strangers who load them all."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from remote_code_harness import (
    BATCH,
    FEW_PAIRS,
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
def strangers(
    checkpoints: Checkpoints, own: dict[str, tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Report, Report, Report]:
    """Two processes without hf_posenc, one after the other, and between them one that has it.

    The first loads every checkpoint, from its folder and from a Hub cache, and saves it again. The second has only some
    of what the first saved: another HF_HOME, and the first one's is gone; its transformers says it is the oldest that
    will do.
    The third loads what the first saved of a user's own schemes, and saves it for the second.
    """
    place = tmp_path_factory.mktemp("strangers")
    first_home, second_home = place / "first_home", place / "second_home"
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    local: list[dict[str, Any]] = []
    for scheme, head in PAIRS:
        folder, name = checkpoints.folder(scheme, head), f"{scheme}/{head}"
        repository = f"me/{scheme}.{head}-v1"
        put_in_hub_cache(folder, first_home, repository)
        for source in SOURCES[scheme, head]:
            again, thrice = (place / where / source / name for where in ("again", "thrice"))
            load = folder if source == "folder" else repository
            first.append(model_job(f"{name}/{source}", load, HEADS[head], again))
            if (scheme, head) in FEW_PAIRS:
                second.append(model_job(f"{name}/{source}", again, HEADS[head], thrice))
    for scheme, dtype in HALVES:
        first.append(model_job(f"{scheme}/{dtype}", checkpoints.folder(scheme), dtype=dtype))
    for task, head in PIPELINES.items():
        job = {"kind": "pipeline", "id": task, "task": task, "texts": TEXTS}
        first.append({**job, "load": str(checkpoints.folder("t5", head))})
    folder = checkpoints.folder("t5")
    # A checkpoint whose code is another repository's, as `auto_map` allows.
    without_code, again = borrower(folder, place / "borrower", f"me/t5.{HEAD}-v1"), place / "again" / "borrower"
    first.append(model_job("borrower", without_code, save=again))
    second.append(model_job("borrower", again))
    of_the_future = changed(folder, place / "of the future", hidden_sise=7, posenc_version="9999.1.0")
    first.append(model_job("of the future", of_the_future))
    first.append({"kind": "model", "id": "no trust", "auto_class": "AutoModel", "load": str(folder)})
    for scheme in HOOKS:
        bare = place / "configs" / scheme
        hf_posenc.PosEncConfig.from_pretrained(checkpoints.folder(scheme)).save_pretrained(bare)
        job = {"kind": "config", "id": f"{scheme}/config", "auto_class": "AutoModelForMaskedLM"}
        first.append({**job, "load": str(bare)})
    for name, (folder, _) in own.items():
        put_in_hub_cache(folder, first_home, f"me/{name}")
        for source, load in (("folder", folder), ("hub", f"me/{name}")):
            saved, again = (place / who / source / name for who in ("first own", "local own"))
            first.append(model_job(f"own {name}/{source}", load, save=saved))
            local.append(model_job(f"own {name}/{source}", saved, save=again))
            second.append(model_job(f"own {name}/{source}", again))
        job = {"id": f"own {name}/config", "load": str(folder), "auto_class": HEADS[HEAD]}
        first.append({**job, "kind": "config"})
        local.append({**job, "kind": "model", "id": f"own {name}/no trust"})
    first_report = run_clean(first, place / "first", first_home)
    shutil.rmtree(first_home)
    between = run_clean(local, place / "local", place / "local_home", with_hf_posenc=True)
    floor = {"pretend_transformers_is": MINIMUM_TRANSFORMERS}
    return first_report, run_clean(second, place / "second", second_home, **floor), between


@pytest.fixture(scope="session")
def first_stranger(strangers: tuple[Report, Report, Report]) -> Report:
    return strangers[0]
