"""Writes a model as an ONNX or OpenVINO graph with dynamic batch and length, by `transformers.exporters`."""

import contextlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import position_limit
from ..errors import UserError, require_packages, spell
from ..files import sha256, write_json
from ..inference.backends import GRAPHS, MANIFEST, OWN_PART
from ..quiet import silence, without_prints
from .parity import input_names, takes_choices

NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",)}
"""The packages that write each format and check it."""
QUANTIZERS = {"onnx": ("onnxruntime",), "openvino": ("nncf",)}
"""The packages that quantise each format."""
_ONE_FILE = 2**31 - 2**24
"""Bytes that one ONNX file can hold: protobuf ends at 2 GiB. Above it weights lie in a second file."""

_SMALLEST_EPS = 1e-7
"""An epsilon below it is taken for 0 by the optimiser of ONNX graphs, and of padding an RMSNorm would be 0 / 0."""


def check_packages(to: str, quantize: str | None = None) -> None:
    """Refuses to go on without what writes the format, and quantises it if that is wanted.

    Raises:
        UserError: a package isn't installed, or transformers is too old; with the line that installs it.
    """
    require_packages(spell("to", to), *NEEDED.get(to, ()))
    if quantize is not None:
        require_packages(spell("quantize", quantize), *QUANTIZERS[to])
    if to in NEEDED:
        try:
            from transformers.exporters import ExportedModel  # noqa: F401
        except ImportError as error:
            way_out = "needs transformers.exporters: pip install 'transformers>=5.23'."
            raise UserError(way_out, parameter="to", value=to) from error


def write_graph(to: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, staging: Path) -> None:
    """Writes a graph and export.json, which names its files.

    Args:
        to: `onnx` (onnx/model.onnx, its weights inside) or `openvino` (openvino/openvino_model.xml and .bin).
        model: in float32 and evaluation mode.
        tokenizer: its own.
        staging: an empty folder.
    """
    from transformers import exporters

    kind, path = {"onnx": "Onnx", "openvino": "OpenVINO"}[to], staging / GRAPHS[to]
    with quietly(), _larger_epsilons(model):
        exporter = getattr(exporters, f"{kind}Exporter")
        config = getattr(exporters, f"{kind}Config")
        exported = exporter().export(model, _example_inputs(model, tokenizer), config(dynamic=True))
        exported.config = None  # its `save_pretrained` would bring the model's code
        exported.save_pretrained(path.parent)
        if to == "onnx":
            _tidy(path)
    manifest = json.loads((path.parent / MANIFEST).read_text(encoding="utf-8"))
    (path.parent / MANIFEST).unlink()
    for component in manifest["components"].values():  # named from the folder above
        component["file"] = f"{path.parent.name}/{component['file']}"
    write_json(staging / MANIFEST, manifest)
    scheme = getattr(model.config, "position_embedding_type", None)
    record_files(staging, to, max_length=position_limit(model), position_embedding_type=scheme)


@contextlib.contextmanager
def _larger_epsilons(model: PreTrainedModel) -> Iterator[None]:
    """Raises the epsilons of RMSNorms that a graph can't hold; the graph is compared with the model as it was."""
    epsilons = {module: module.eps for module in model.modules() if isinstance(module, torch.nn.RMSNorm)}
    try:
        for norm, epsilon in epsilons.items():
            norm.eps = max(epsilon or 0.0, _SMALLEST_EPS)
        yield
    finally:
        for norm, epsilon in epsilons.items():
            norm.eps = epsilon


def record_files(staging: Path, to: str, **facts: Any) -> None:
    """Writes the digests of the graph's files into the manifest, and further facts, whenever the files have changed."""
    manifest = json.loads((staging / MANIFEST).read_text(encoding="utf-8"))
    files = sorted(path for path in (staging / GRAPHS[to]).parent.iterdir() if path.is_file())
    digests = {path.relative_to(staging).as_posix(): sha256(path) for path in files}
    manifest[OWN_PART] = {**manifest.get(OWN_PART, {}), **facts, "files": digests}
    write_json(staging / MANIFEST, manifest)


def _example_inputs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Inputs that the graph is traced with: two texts of unlike lengths. Batch and length stay free."""
    length = min(16, position_limit(model) or 16)
    shape = (2, 3, length) if takes_choices(model) else (2, length)
    mask = torch.ones(shape, dtype=torch.long)
    mask[0, ..., length // 2 :] = 0
    parts = {"input_ids": torch.ones_like(mask), "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)}
    return {name: parts[name] for name in input_names(model, tokenizer)}


def _tidy(path: Path) -> None:
    """Puts the weights into the ONNX file if it can hold them, and takes this machine's lines of source out."""
    import onnx

    is_large = data_file(path).stat().st_size > _ONE_FILE
    model = onnx.load(path, load_external_data=not is_large)
    del model.graph.value_info[:]  # of which quantisation would take the shapes that it has changed
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, path)
    if not is_large:
        empty_data_file(path)


def data_file(path: Path) -> Path:
    """The second file of an ONNX graph."""
    return path.with_name(f"{path.name}.data")


def empty_data_file(path: Path) -> None:
    """Leaves a sentence in the second file of an ONNX graph that holds its weights."""
    text = "The weights are in model.onnx. ExportedModel.from_pretrained asks for this file, too.\n"
    data_file(path).write_text(text, encoding="utf-8")


def weights_apart(staging: Path) -> list[str]:
    """A note where a graph's weights are in a second file, on whose name servers don't agree."""
    data = data_file(staging / GRAPHS["onnx"])
    if not data.is_file() or data.stat().st_size <= _ONE_FILE:
        return []
    return [
        f"The weights are in {data.name}, since an ONNX file holds 2 GiB at most. Text Embeddings Inference reads "
        "them from this folder; on the Hub it looks for model.onnx_data."
    ]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the exporters' remarks on versions, missing vision packages and their own steps."""
    with silence("torch.onnx", "nncf", "openvino", "root"), without_prints(), warnings.catch_warnings(action="ignore"):
        yield
