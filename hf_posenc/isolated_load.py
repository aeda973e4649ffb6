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
    """Loads a checkpoint in float32, with `trust_remote_code=True`, in a process without network, and runs it.

    Args:
        folder: a folder for the files that are exchanged.
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

    job = {"checkpoint": checkpoint, "auto_class": auto_class, "texts": texts, "hidden": ["hf_posenc", *hidden]}
    (folder / "job.json").write_text(json.dumps({**job, "options": options or {}}), encoding="utf-8")
    save_file({name: value.contiguous() for name, value in inputs.items()}, folder / "inputs")
    try:
        subprocess.run(
            [sys.executable, "-P", "-X", "utf8", __file__, str(folder)],
            cwd=folder,
            env={**environment, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise IsolatedLoadFailed(f"the process that loads it took more than {timeout:g} s") from None
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr[-500:].split())
        raise IsolatedLoadFailed(f"the process that loads it ended with {error.returncode}: {reason}") from None
    token_ids = json.loads((folder / "token_ids").read_text(encoding="utf-8"))
    return Answer(load_file(folder / "outputs")["output"], token_ids)


def first_output(model: Any, **inputs: Any) -> Any:
    """The first tensor that a model with any head returns for tokens (B, S); multiple choice gets one choice."""
    import torch

    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {name: value[:, None] for name, value in inputs.items()}
    with torch.no_grad():
        return next(iter(model.eval()(**inputs).values())).contiguous()


def _main(folder: Path) -> None:
    """Does the job in `folder`; an error ends the process."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    for name in job["hidden"]:
        sys.modules[name] = None  # type: ignore[assignment]  # an import fails, as if it weren't installed
    import transformers
    from safetensors.torch import load_file, save_file

    options = {"trust_remote_code": True, **job["options"]}
    auto = getattr(transformers, job["auto_class"])
    model, info = auto.from_pretrained(job["checkpoint"], output_loading_info=True, dtype="float32", **options)
    if info["missing_keys"] or info["unexpected_keys"]:
        missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
        sys.exit(f"missing weights {missing}, unexpected {unexpected}")
    token_ids = None
    if job["texts"] is not None:
        token_ids = transformers.AutoTokenizer.from_pretrained(job["checkpoint"], **options)(job["texts"])["input_ids"]
    (folder / "token_ids").write_text(json.dumps(token_ids), encoding="utf-8")
    output = first_output(model, **load_file(folder / "inputs"))
    assert not any(module and name.partition(".")[0] == "hf_posenc" for name, module in sys.modules.items())
    save_file({"output": output.clone()}, folder / "outputs")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
