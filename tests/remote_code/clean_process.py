"""A stranger's process: `hf_posenc` can't be imported, all that is there are folders with checkpoints.

Run as `python -I clean_process.py jobs.json`. It does every job of the file and writes what came out, so that one
process (and one import of torch) serves the whole suite. It must not import anything from hf_posenc or its tests.
"""

import importlib
import importlib.metadata
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def pretend_transformers_is(version: str) -> None:
    """What the package metadata says, from here on."""
    real = importlib.metadata.version
    importlib.metadata.version = lambda name: version if name == "transformers" else real(name)


def outputs(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Every tensor that a model gives for a batch, and its encoder's hidden states.

    Multiple choice sees the batch's rows as two choices each.
    """
    import torch

    rows = batch
    if type(model).__name__.endswith("ForMultipleChoice"):
        batch = {name: value.unflatten(0, (-1, 2)) for name, value in batch.items()}
    with torch.no_grad():
        tensors = {name: value for name, value in model(**batch).items() if isinstance(value, torch.Tensor)}
        tensors["encoder"] = model.base_model(**rows).last_hidden_state
    return {name: value.contiguous() for name, value in tensors.items()}


def load_model(job: dict[str, Any], batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Loads a model by an Auto class, runs it, and saves it again if the job says where."""
    import torch
    import transformers

    options = dict(job.get("options", {}))
    if "dtype" in options:
        options["dtype"] = getattr(torch, options["dtype"])
    auto_class = getattr(transformers, job["auto_class"])
    model, info = auto_class.from_pretrained(job["load"], output_loading_info=True, **options)
    answer = {
        "class": type(model).__name__,
        "module": type(model).__module__,
        "dtypes": sorted({str(parameter.dtype) for parameter in model.parameters()}),
        "training": model.training,
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
    }
    if "save" in job:
        model.save_pretrained(job["save"])
        answer["saved"] = job["save"]
    return answer, outputs(model, batch)


def run_pipeline(job: dict[str, Any], batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Builds a pipeline from nothing but a folder, and gives it texts."""
    import transformers

    pipe = transformers.pipeline(job["task"], model=job["load"], trust_remote_code=True)
    results = pipe(job["texts"], batch_size=len(job["texts"]))
    answer = {"module": type(pipe.model).__module__, "class": type(pipe.model).__name__}
    return {**answer, "found": json.loads(json.dumps(results, default=float))}, {}


def load_config(job: dict[str, Any], batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Loads a configuration, and builds a model from it if the job says which."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(job["load"], trust_remote_code=True)
    answer = {"module": type(config).__module__, "config": json.loads(config.to_json_string(use_diff=False))}
    if "auto_class" in job:
        model = getattr(transformers, job["auto_class"]).from_config(config, trust_remote_code=True)
        answer["class"] = type(model).__name__
        return answer, outputs(model.eval(), batch)
    return answer, {}


KINDS: dict[str, Callable[[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]] = {
    "model": load_model,
    "pipeline": run_pipeline,
    "config": load_config,
}


def main(path: Path) -> None:
    order = json.loads(path.read_text())
    sys.modules["hf_posenc"] = None  # as if it weren't installed, whatever sys.path says
    try:
        importlib.import_module("hf_posenc")
        hidden = None
    except ModuleNotFoundError as error:
        hidden = str(error)

    import torch
    import transformers  # before its version is faked: it looks at its own
    from safetensors.torch import load_file, save_file

    if "pretend_transformers_is" in order:
        pretend_transformers_is(order["pretend_transformers_is"])
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    batch = load_file(order["batch"])
    answers: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for job in order["jobs"]:
        try:
            answers[job["id"]], job_tensors = KINDS[job["kind"]](job, batch)
            tensors.update({f"{job['id']}#{name}": value.clone() for name, value in job_tensors.items()})
        except Exception as error:
            answers[job["id"]] = {
                "error": type(error).__name__,
                "message": str(error),
                "chained": repr(error.__cause__ or error.__context__),
                "traceback": traceback.format_exc(),
            }
    save_file(tensors, order["tensors"])
    report = {"hidden": hidden, "transformers": transformers.__version__, "jobs": answers}
    Path(order["report"]).write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
