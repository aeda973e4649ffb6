"""A stranger's process: `hf_posenc` can't be imported, all that is there are folders with checkpoints.

Run as `python -I clean_process.py FOLDER`. It does every job of the folder's order and writes what came out, so that
one process (and one import of torch) serves the whole suite. It must not import anything from hf_posenc or its tests.
"""

import importlib
import importlib.metadata
import json
import sys
import traceback
from pathlib import Path
from typing import Any


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
    import transformers

    auto_class = getattr(transformers, job["auto_class"])
    model, info = auto_class.from_pretrained(job["load"], output_loading_info=True, trust_remote_code=job["trust"])
    answer = {
        "class": type(model).__name__,
        "module": type(model).__module__,
        "training": model.training,
        "wrong": sorted(info["missing_keys"] | info["unexpected_keys"]),
    }
    if job["save"]:
        model.save_pretrained(job["save"])
    return answer, outputs(model, batch)


def run_pipeline(job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Builds a pipeline from nothing but a folder, and gives it texts."""
    import transformers

    pipe = transformers.pipeline(job["task"], model=job["load"], trust_remote_code=True)
    results = pipe(job["texts"], batch_size=len(job["texts"]))
    return {"module": type(pipe.model).__module__, "results": json.loads(json.dumps(results, default=float))}, {}


def main(folder: Path) -> None:
    order = json.loads((folder / "order").read_text())
    sys.modules["hf_posenc"] = None  # as if it weren't installed, whatever sys.path says
    try:
        importlib.import_module("hf_posenc")
        hidden = None
    except ModuleNotFoundError as error:
        hidden = str(error)

    import torch
    import transformers  # before its version is faked: it looks at its own
    from safetensors.torch import load_file, save_file

    real = importlib.metadata.version
    importlib.metadata.version = lambda name: order["version"] if name == "transformers" else real(name)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    batch = load_file(folder / "batch")
    answers: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for name, job in order["jobs"].items():
        try:
            answers[name], job_tensors = run_pipeline(job) if "task" in job else load_model(job, batch)
            tensors.update({f"{name}#{part}": value.clone() for part, value in job_tensors.items()})
        except Exception as error:
            answers[name] = {"error": repr(error), "traceback": traceback.format_exc()}
    save_file(tensors, folder / "tensors")
    (folder / "report").write_text(json.dumps({"hidden": hidden, "jobs": answers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
