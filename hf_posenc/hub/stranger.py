"""A stranger's process: loads the published commit without hf_posenc, and compares it with what was sent.

Run as `python -I stranger.py ORDER.json`, which names the repository, the commit, the Auto class, and a file of
tensors: the input, what the author's model gives for it, and its weights. The commit lies in the cache; the network is
off. Imports nothing of hf_posenc. The last line of standard output is JSON: `{"error": null}`, or what is wrong.
"""

import importlib.abc
import json
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class HideHfPosenc(importlib.abc.MetaPathFinder):
    """Makes `import hf_posenc` fail, as where it isn't installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Refuses hf_posenc, and leaves other names to other finders."""
        if fullname.partition(".")[0] == "hf_posenc":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def first_output(model: Any, input_ids: Any) -> Any:
    """The first tensor that a model of any head gives for tokens (B, S); multiple choice sees one choice per row."""
    import torch

    if type(model).__name__.endswith("ForMultipleChoice"):
        input_ids = input_ids[:, None]
    with torch.no_grad():
        return next(iter(model.eval()(input_ids=input_ids).values())).contiguous()


def compare(order: dict[str, Any]) -> str | None:
    """The first difference from what was sent, or None."""
    import torch
    import transformers
    from safetensors.torch import load_file

    repository, revision = order["repo_id"], order["revision"]
    options = {"revision": revision, "code_revision": revision, "trust_remote_code": True}
    auto = getattr(transformers, order["auto_class"])
    model, info = auto.from_pretrained(repository, output_loading_info=True, dtype="auto", **options)
    if info["missing_keys"] or info["unexpected_keys"]:
        return f"missing weights {sorted(info['missing_keys'])}, unexpected {sorted(info['unexpected_keys'])}"
    tensors = load_file(order["tensors"])
    for name, value in model.state_dict().items():
        if not torch.equal(value, tensors[f"weight:{name}"]):
            return f"the weight {name} differs"
    if not torch.allclose(first_output(model, tensors["input_ids"]), tensors["output"], atol=1e-5):
        return "with the same weights and input it gives another output"
    if order["tokenizer"] is not None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(repository, **options)
        if tokenizer(order["text"])["input_ids"] != order["tokenizer"]:
            return f"the tokenizer reads {order['text']!r} differently"
    return None


def main(path: str) -> None:
    """Reads the order, compares, and prints the result."""
    sys.meta_path.insert(0, HideHfPosenc())
    with open(path, encoding="utf-8") as file:
        order = json.load(file)
    try:
        error = compare(order)
    except Exception as problem:
        error = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
    print(json.dumps({"error": error}))


if __name__ == "__main__":
    main(sys.argv[1])
