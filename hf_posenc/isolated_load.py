"""Loads a checkpoint in a process where `import hf_posenc` fails, so that the checkpoint's own code runs.

`load_isolated` starts this file as a script, which imports nothing of hf_posenc.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class IsolatedLoadFailed(Exception):
    """The process ended with an error, which is the message."""


@dataclass(frozen=True)
class Answer:
    """The outputs of that process."""

    output: Any
    """The first tensor that the model returns."""
    token_ids: list[list[int]] | None
    """The texts' token ids."""


def load_isolated(
    folder: Path,
    checkpoint: str,
    auto_class: str,
    *,
    inputs: Mapping[str, Any],
    environment: Mapping[str, str],
    texts: Sequence[str] | None = None,
    hidden: Sequence[str] = (),
    timeout: float = 1800,
    options: Mapping[str, Any] | None = None,
) -> Answer:
    """Loads a checkpoint with `trust_remote_code=True` in a process of its own, without network, and runs it.

    Args:
        folder: a folder for job.json, inputs and outputs, the files that are exchanged.
        checkpoint: a folder, or a name whose files are in the process's cache.
        auto_class: the class of transformers that loads it.
        inputs: tensors for the model.
        environment: of the process.
        texts: what its tokenizer reads.
        hidden: further packages that the process can't import.
        timeout: seconds until the process is stopped; a large model may take minutes.
        options: for `from_pretrained`.

    Raises:
        IsolatedLoadFailed: it can't be loaded, a weight is missing or unexpected, it can't be run, or takes too long.
    """
    from safetensors.torch import load_file, save_file

    job: dict[str, Any] = {"checkpoint": checkpoint, "auto_class": auto_class, "options": dict(options or {})}
    job |= {"texts": None if texts is None else list(texts), "hidden": ["hf_posenc", *hidden]}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    save_file({name: value.contiguous() for name, value in inputs.items()}, folder / "inputs")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-X", "utf8", __file__, str(folder)],
            cwd=folder,
            env={**environment, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise IsolatedLoadFailed(f"the process that loads it took more than {timeout:g} s") from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1] if done.returncode == 0 else "")
    except (IndexError, ValueError):
        reason = " ".join(done.stderr[-500:].split())
        raise IsolatedLoadFailed(f"the process that loads it ended with {done.returncode}: {reason}") from None
    if answer["error"] is not None:
        raise IsolatedLoadFailed(answer["error"])
    return Answer(load_file(folder / "outputs")["output"], answer["token_ids"])


def first_output(model: Any, **inputs: Any) -> Any:
    """The first tensor that a model with any head returns for tokens (B, S); multiple choice gets one choice."""
    import torch

    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {name: value[:, None] for name, value in inputs.items()}
    with torch.no_grad():
        return next(iter(model.eval()(**inputs).values())).contiguous()


def _load_and_run(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    import transformers
    from safetensors.torch import load_file, save_file

    options = {"trust_remote_code": True, **job["options"]}
    auto = getattr(transformers, job["auto_class"])
    model, info = auto.from_pretrained(job["checkpoint"], output_loading_info=True, dtype="auto", **options)
    if info["missing_keys"] or info["unexpected_keys"]:
        missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
        return {"error": f"missing weights {missing}, unexpected {unexpected}"}
    token_ids = None
    if job["texts"] is not None:
        token_ids = transformers.AutoTokenizer.from_pretrained(job["checkpoint"], **options)(job["texts"])["input_ids"]
    output = first_output(model, **load_file(folder / "inputs"))
    assert not any(module and name.partition(".")[0] == "hf_posenc" for name, module in sys.modules.items())
    save_file({"output": output.clone()}, folder / "outputs")
    return {"error": None, "token_ids": token_ids}


def _main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    for name in job["hidden"]:
        sys.modules[name] = None  # type: ignore[assignment]  # an import fails, as if it weren't installed
    try:
        answer = _load_and_run(folder, job)
    except Exception as problem:
        answer = {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
