"""The code that travels with a checkpoint calls PyTorch and transformers by their public names alone."""

import ast

import pytest

from tests.support.common import BUILTIN, tiny_config
from tests.support.remote_code import code_of

FILES = {name: text for scheme in (*BUILTIN, "learned+t5") for name, text in code_of(tiny_config(scheme)).items()}
PACKAGES = ("torch", "transformers", "huggingface_hub")
PRIVATE_ROOTS = ("torch.ops.mkldnn", "torch.ops.aten", "torch._C")
# transformers' own protocol: what it calls on a model, and marks on a weight.
PROTOCOL = {"_is_hf_initialized", "_init_weights"}


def private_names(text: str) -> list[str]:
    """Names with a leading underscore that are taken from a package, and operations of torch.ops."""
    tree = ast.parse(text)
    roots = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            roots |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    used = set(roots.values())
    for node in ast.walk(tree):
        chain, inner = [], node
        while isinstance(inner, ast.Attribute):
            chain.insert(0, inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name) and inner.id in roots:
            used.add(".".join((roots[inner.id], *chain)))
    theirs = (name for name in used if name.partition(".")[0] in PACKAGES)
    return sorted(
        name
        for name in theirs
        if name.startswith(PRIVATE_ROOTS)
        or any(part.startswith("_") and not part.startswith("__") and part not in PROTOCOL for part in name.split("."))
    )


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_travels_uses_public_names(name):
    assert private_names(FILES[name]) == []
    for word in ("os.environ", "/proc", "torch._C", "torch.ops", "_scaled_dot_product"):
        assert word not in FILES[name]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import torch\ntorch._C._len_torch_dispatch_stack()", ["torch._C", "torch._C._len_torch_dispatch_stack"]),
        ("from torch.utils import _pytree", ["torch.utils._pytree"]),
        ("import torch\ntorch.nn.functional.linear(x, self._weight)", []),
    ],
)
def test_private_names_are_found(text, names):
    assert private_names(text) == names
