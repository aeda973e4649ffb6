"""Opens an exported folder in a runtime, ONNX Runtime or OpenVINO, and runs batches; PyTorch in the same way."""

import functools
import importlib.util
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..checkpoints.files import read_json
from ..checkpoints.loading import position_limit
from ..errors import UserError, readable, require_packages, spell
from ..files import sha256
from ..tasks import LABELLED, task_of

MANIFEST = "export.json"
"""What an exported folder says of its graph; `transformers.exporters` reads it too."""
OWN_PART = "hf_posenc"
"""The manifest's part that this package writes: `max_length`, and the SHA-256 of the graph's files."""
_PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}
"""What runs each format."""
GRAPHS = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
"""The graph of each format, where servers look for it."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""The inputs that a graph may have: (B, S), or (B, C, S) of multiple choice; integers."""


@dataclass(eq=False)
class Backend:
    """A model in a runtime: from token ids to what its heads return. Called, it takes the place of a PyTorch model."""

    run: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
    max_length: int | None
    """The most tokens that its table of positions takes. None: any number."""
    streams: int = 1
    """How many threads may run batches at once."""
    precision: str | None = None
    """`int8` of a quantised graph; None: that of the weights."""
    config: Any = None
    name_or_path: str = ""
    device = torch.device("cpu")

    def outputs(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by its name, float32: `logits`, or `start_logits` and `end_logits`, or `last_hidden_state`.

        Args:
            batch: `input_ids` and `attention_mask`, and `token_type_ids` for a model that has them (default: zeros);
                (B, S), or (B, C, S) of multiple choice. Other arrays aren't read.

        Raises:
            UserError: the texts are longer than the table of positions.
        """
        arrays = {name: np.ascontiguousarray(batch[name], dtype=np.int64) for name in INPUTS if name in batch}
        length = arrays["input_ids"].shape[-1]
        if self.max_length is not None and length > self.max_length:
            raise UserError(
                f"The batch is {length} tokens long, and the model's table of positions ends at {self.max_length}. "
                f"Truncate to {self.max_length} tokens, or use a scheme without a table, such as rope."
            )
        return self.run(arrays)

    def logits(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Output of the head, float32: (B, C) of texts, (B, S, C) of tokens, (B, S, 2) of answers' starts and ends.

        A model without a head returns its hidden states (B, S, D). Arguments and errors are those of `outputs`.
        """
        outputs = self.outputs(batch)
        if "start_logits" in outputs:
            return np.stack((outputs["start_logits"], outputs["end_logits"]), -1)
        return outputs["logits"] if "logits" in outputs else outputs["last_hidden_state"]

    def eval(self) -> "Backend":
        """Itself: a graph doesn't train."""
        return self

    def __call__(self, **batch: torch.Tensor) -> Any:
        """Token ids and mask (B, S) -> an output with `logits`, float32."""
        logits = self.logits({name: tensor.numpy() for name, tensor in batch.items()})
        return SimpleNamespace(logits=torch.from_numpy(logits))


def fastest_backend(folder: str | Path) -> str:
    """The fastest backend for a folder: OpenVINO's graph, if its package is installed, or ONNX Runtime's, else PyTorch.

    Where weights lie beside a graph, PyTorch takes them: nothing says that the graph was made of these. A Hub name, and
    a folder with none of their files, is PyTorch's to load or to refuse.
    """
    graphs = _graphs_in(Path(folder))
    if not graphs or any(Path(folder).glob("*.safetensors")):
        return "torch"
    has_runtime = importlib.util.find_spec("openvino") or "onnx" not in graphs
    return "openvino" if "openvino" in graphs and has_runtime else "onnx"


def open_backend(folder: str | Path, name: str, *, bf16: bool = False, throughput: bool = False) -> Backend:
    """Opens a graph in its runtime.

    Args:
        folder: what `hf-posenc export` wrote, or another folder with such a graph.
        name: `onnx` or `openvino`.
        bf16: compute in bfloat16, which OpenVINO can: faster, logits with about three digits.
        throughput: for `openvino`: take several batches at once, each slower, rather than one as fast as can be.

    Raises:
        UserError: the name is unknown, its package is missing, the folder has no such graph, or a damaged one, or one
            with other inputs, or a classifier's that doesn't answer with a number for each label of config.json.
    """
    if name not in GRAPHS:
        known = f"is unknown. Choose one of torch, {', '.join(GRAPHS)}."
        raise UserError(known, parameter="backend", value=name)
    require_packages(name, _PACKAGES[name])
    folder, graphs = Path(folder), _graphs_in(Path(folder))
    if name not in graphs:
        also = f" It holds one for {' and '.join(graphs)}." if graphs else ""
        if not folder.is_dir():
            way_out = f"Download it first (`hf download {folder}`), and name the folder that this prints."
            raise UserError(f"is for a folder, and {str(folder)!r} is none. {way_out}", parameter="backend", value=name)
        raise UserError(f"{str(folder)!r} has no {GRAPHS[name]}.{also} Export the checkpoint with {spell('to', name)}.")
    damaged = "The file is damaged (copy the folder or export anew), or a scheme of your own"
    way_out = f"{damaged} uses an operation that the runtime lacks (write it with others)."
    with readable(repr(str(graphs[name])), way_out):
        return _open(folder, graphs[name], name, bf16, throughput)


def _open(folder: Path, path: Path, name: str, bf16: bool, throughput: bool) -> Backend:
    """Opens a folder's graph, see `open_backend`; raises whatever its runtime does."""
    manifest = read_json(folder / MANIFEST, str(folder), dict)
    config = read_json(folder / "config.json", str(folder), dict)
    # Of a graph that others wrote, the longest input is the one that its config names.
    recorded = manifest.get(OWN_PART) or {"max_length": config.get("max_position_embeddings")}
    for file, digest in recorded.get("files", {}).items():
        if sha256(folder / file) != digest:
            raise ValueError(f"{file} isn't what was exported")
    inputs, run, streams = _open_onnx(path, bf16) if name == "onnx" else _open_openvino(path, bf16, throughput)
    unknown = sorted(set(inputs) - set(INPUTS))
    if unknown or "input_ids" not in inputs:
        raise UserError(
            f"{str(path)!r} takes {', '.join(inputs)}; known are {', '.join(INPUTS)}. Export the checkpoint with "
            f"{spell('to', name)}."
        )

    def run_known(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        zeros = {"token_type_ids": np.zeros_like(arrays["input_ids"])}
        return run({key: {**zeros, **arrays}[key] for key in inputs})

    backend = Backend(run_known, recorded["max_length"], streams, recorded.get("quantized"))
    _check_label_count(path, backend, config)
    return backend


def _check_label_count(path: Path, backend: Backend, config: dict[str, Any]) -> None:
    """Refuses a classifier's graph that answers three tokens with other than a number for each label of the config."""
    architecture, *_ = config.get("architectures") or [""]
    if task_of(architecture) not in LABELLED:
        return
    mask = np.ones((1, min(3, backend.max_length or 3)), np.int64)
    numbers = backend.logits({"input_ids": np.zeros_like(mask), "attention_mask": mask}).shape[-1]
    labels = len(config["id2label"]) if config.get("id2label") else config.get("num_labels", 2)
    if numbers != labels:
        raise UserError(
            f"{str(path)!r} answers with {numbers} numbers, and the folder's config.json has {labels} labels. Export "
            "the checkpoint anew: both files are written together."
        )


def torch_backend(model: Any) -> Backend:
    """A loaded model as a backend; it is put into evaluation mode, and runs where it is."""
    model.eval()

    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not getattr(model.config, "type_vocab_size", 0):
            arrays.pop("token_type_ids", None)
        batch = {name: torch.from_numpy(array).to(model.device) for name, array in arrays.items()}
        with torch.no_grad():
            outputs = model(**batch)
        return {name: value.float().cpu().numpy() for name, value in outputs.items() if isinstance(value, torch.Tensor)}

    return Backend(run, position_limit(model))


_Opened = tuple[list[str], Callable[..., dict[str, np.ndarray]], int]
"""A graph's inputs, what runs it, and how many batches it takes at once."""


def _open_onnx(path: Path, bf16: bool) -> _Opened:
    import onnxruntime

    if bf16:
        raise UserError("ONNX Runtime computes the graph in float32: leave bf16 out, or take the backend openvino.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, feed), strict=True))

    return [item.name for item in session.get_inputs()], run, 1


@functools.cache
def _openvino_core() -> Any:
    """The process's own: two that end in the order in which they began leave signals a stack that is freed memory."""
    import openvino

    return openvino.Core()


def _open_openvino(path: Path, bf16: bool, throughput: bool) -> _Opened:
    import openvino

    # Said explicitly: by itself OpenVINO computes in bfloat16 on a processor that has it.
    hints = {"INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32"}
    hints["PERFORMANCE_HINT"] = "THROUGHPUT" if throughput else "LATENCY"
    compiled = _openvino_core().compile_model(str(path), "CPU", hints)
    of_thread = threading.local()
    # OpenVINO loads NumPy's interface at the first such access, and two threads that do so at once wait for each other.
    _ = openvino.Tensor(np.zeros(1)).data

    def run(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(of_thread, "request"):
            of_thread.request = compiled.create_infer_request()
        outputs = of_thread.request.infer(feed)
        return {port.get_any_name(): np.array(outputs[port], dtype=np.float32) for port in compiled.outputs}

    streams = int(compiled.get_property("NUM_STREAMS")) if throughput else 1
    return [item.get_any_name() for item in compiled.inputs], run, streams


def _graphs_in(folder: Path) -> dict[str, Path]:
    """The graph of each format that a folder holds; some writers put it beside config.json."""
    places = ((name, path) for name, graph in GRAPHS.items() for path in (folder / Path(graph).name, folder / graph))
    return {name: path for name, path in places if path.is_file()}
