"""Checks of what leaves this process: another device, an exported graph, a checkpoint, a stranger's process."""

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from ...isolated_load import IsolatedLoadFailed, load_isolated
from ...model.modeling_posenc import PosEncForSequenceClassification
from ..support.saved_code import is_built_in, source_file
from .case import SEQUENCES, Case, Failure, Skip, describe, draw_tokens, pad_batch, require_same


def check_device(case: Case) -> None:
    """Constants are made on the device of the positions: the encoder runs on a device that isn't the CPU."""
    model: Any = case.classifier().to("meta")  # type: ignore[arg-type]  # has shapes and no numbers, so that the code must run as when traced
    ids = torch.ones(2, 9, dtype=torch.int64, device="meta")
    try:
        with mock.patch("torch.compiler.is_compiling", return_value=True), torch.no_grad():
            model(ids, attention_mask=ids)
    except Exception as error:
        raise Failure(
            f"on another device than the CPU (meta) the encoder fails: {describe(error)}. Make what a hook needs with "
            "device=positions.device, and let no shape or branch depend on data while scheme_math.tracing()."
        ) from error


class _Logits(nn.Module):
    """Tensors in, a tensor out, as the exporter wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids, attention_mask=attention_mask).logits


def check_export(case: Case) -> None:
    """torch.export with dynamic batch and length gives the same logits at other sizes."""
    model = case.classifier()
    longest = case.longest(64)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=longest)
    sizes = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    example = pad_batch(SEQUENCES[:1] + SEQUENCES[2:])
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # prints graphs
            program = torch.export.export(_Logits(model), example, dynamic_shapes=sizes).module()
    except Exception as error:
        raise Failure(
            f"torch.export fails: {describe(error)}. A shape or a branch depends on data: int(tensor), tensor.max(), "
            "unique(), `if tensor`. Guard it by scheme_math.tracing()."
        ) from error
    for ids, mask in (
        example,
        pad_batch(SEQUENCES[2:3]),
        pad_batch([draw_tokens(17, seed=3), *SEQUENCES], "left"),
    ):
        try:
            logits = program(ids, mask)
        except Exception as error:
            raise Failure(
                f"the exported program fails at {tuple(ids.shape)} tokens: {describe(error)}. A size was a Python "
                "number when it was traced: take it from x.shape, not from len(x)."
            ) from error
        require_same(
            logits,
            model(ids, attention_mask=mask).logits,
            f"Logits of the exported program and of the model at {tuple(ids.shape)} tokens",
            "A size was a Python number when the program was traced: take it from the tensor's shape.",
        )


def _foreign_classes(model: nn.Module) -> list[type]:
    """The classes of schemes that aren't ours; skips the check where one is being tried out and can't be saved yet."""
    schemes: set[Any] = {type(module) for module in model.modules() if hasattr(module, "uses")}
    foreign = [scheme for scheme in schemes if not is_built_in(scheme)]
    for scheme in foreign:
        try:
            source_file(scheme)
        except ValueError as error:
            raise Skip(
                f"{scheme.__module__}.{scheme.__qualname__} can't travel with a checkpoint: define the class at the "
                "top of a module file."
            ) from error
    return foreign


def check_saving(case: Case) -> None:
    """A model loaded from its checkpoint gives the same logits, bit by bit."""
    model = case.classifier()
    _foreign_classes(model)
    ids, mask = pad_batch(SEQUENCES, "left")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded: Any = PosEncForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    again, info = loaded
    again.eval()
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem]:
            raise Failure(f"the checkpoint has {problem.replace('_', ' ')}: {sorted(map(str, info[problem]))}.")
    for name in ("position_embedding_kwargs", "rope_parameters"):
        written, read = getattr(model.config, name), getattr(again.config, name)
        if written != read:
            raise Failure(f"{name} was {written} and comes back as {read}. Use what JSON can hold.")
    read_back = again.state_dict()
    for name, weight in model.state_dict().items():
        if not torch.equal(read_back[name], weight):
            raise Failure(f"{name} comes back different. init_weights must use transformers.initialization.")
    require_same(
        again(ids, attention_mask=mask).logits,
        model(ids, attention_mask=mask).logits,
        "Logits of the loaded model and of the saved one",
        "Something that isn't a weight was computed in the constructor, which runs on the meta device when a model is "
        "loaded: compute it in the hook from Python numbers.",
        most=0.0,
    )


def check_remote_code(case: Case) -> None:
    """A fresh process without hf_posenc loads the checkpoint with `trust_remote_code=True`: the same logits."""
    model = case.classifier()
    foreign = _foreign_classes(model)
    ids, mask = pad_batch(SEQUENCES, "left")
    batch = {"input_ids": ids, "attention_mask": mask}
    hidden = sorted({scheme.__module__.partition(".")[0] for scheme in foreign})
    with tempfile.TemporaryDirectory() as root:
        model.save_pretrained(Path(root) / "checkpoint")
        home = {"HF_HOME": root, "HF_MODULES_CACHE": f"{root}/modules", "OMP_NUM_THREADS": "1"}
        try:
            answer = load_isolated(
                Path(root),
                f"{root}/checkpoint",
                "AutoModelForSequenceClassification",
                inputs=batch,
                environment={**os.environ, **home},
                hidden=hidden,
                timeout=300,
            )
        except IsolatedLoadFailed as error:
            raise Failure(
                f"a process without hf_posenc can't load the checkpoint: {error}. The scheme's file may import torch, "
                "transformers and the protocol, and nothing else that isn't installed there."
            ) from error
    with torch.no_grad():
        expected = model(**batch).logits
    require_same(
        answer.output,
        expected,
        "Logits of the loaded checkpoint in a process without hf_posenc, and here",
        "The scheme depends on something that isn't in the checkpoint: a module-level setting, a file, an environment "
        "variable.",
        most=1e-6,
    )
