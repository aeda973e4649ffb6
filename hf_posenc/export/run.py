"""`export`: a checkpoint to another runtime's folder, checked, whole or not at all."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..conversion.output import check_free, load_tokenizer, model_written
from ..conversion.sources import find_folder
from ..errors import UserError, check_is_checkpoint
from ..finetuning.backends import GRAPHS, open_backend, torch_backend
from ..finetuning.loading import load_any
from ..finetuning.model import input_length
from ..quiet import without_bars
from .folder import write_card, write_config, write_sentence_modules, write_tokenizer
from .graph import check_packages, write_onnx, write_openvino
from .parity import LARGEST, batches, largest_difference

logger = logging.getLogger(__name__)

Writer = Callable[[PreTrainedModel, PreTrainedTokenizerBase, Path], list[str]]
"""Writes a model, in float32 and evaluation mode, into an empty folder; returns notes for the user."""
TARGETS: dict[str, Writer] = {"onnx": write_onnx, "openvino": write_openvino}
"""What a checkpoint can be exported to. A target with a graph stands in `GRAPHS`, too."""


@dataclass
class ExportReport:
    """What was exported, and how exactly."""

    checkpoint: str
    out: str
    target: str
    architecture: str
    largest_difference: float
    """From PyTorch in float32; see `parity.largest_difference`."""
    batches: int
    """That were compared."""
    megabytes: float
    """Of the model's files, without tokenizer."""
    max_length: int | None
    """Where the table of positions ends. None: no limit."""
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Lines for the terminal."""
        limit = f"at most {self.max_length} tokens" if self.max_length else "any length"
        lines = [
            f"{self.architecture} for {self.target} is in {self.out}: {self.megabytes:.1f} MB, {limit}.",
            f"It differs from PyTorch by at most {self.largest_difference:.1e}, on {self.batches} batches of texts.",
        ]
        return "\n".join([*lines, *self.notes])


@without_bars()
def export(
    checkpoint: str | Path,
    out: str | Path,
    to: str,
    *,
    overwrite: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Callable[[str], object] = logger.info,
) -> ExportReport:
    """Writes a checkpoint as a folder without code that another runtime loads, and compares it with PyTorch.

    Args:
        checkpoint: folder or Hub name; any head, a PosEnc encoder or one of Transformers' own.
        out: the folder to write, whole or not at all.
        to: `onnx` or `openvino`.
        overwrite: replace the model in `out`.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: run the checkpoint's code, for a scheme of its author's own.
        progress: is told each step in a line.

    Raises:
        UserError: the target is unknown or its packages are missing; the checkpoint can't be read or has no tokenizer;
            `out` can't be written; or what was written differs from PyTorch by more than 1e-4. Nothing is left then.
    """
    source = str(checkpoint)
    if to not in TARGETS:
        raise UserError(f"--to {to!r} is unknown. Choose one of {', '.join(TARGETS)}.")
    check_packages(to)
    check_is_checkpoint(source)
    check_free(out, overwrite, source)
    progress(f"Loading {source}")
    folder = find_folder(source, revision)
    model = load_any(str(folder), trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, source)
    if tokenizer is None:
        raise UserError(
            f"{source!r} has no tokenizer, and whatever loads the export needs one. Save it into that folder: "
            f"AutoTokenizer.from_pretrained(ORIGINAL).save_pretrained({source!r})."
        )
    input_length(model, tokenizer)
    with model_written(out) as staging:
        progress(f"Writing {type(model).__name__} for {to}")
        notes = TARGETS[to](model, tokenizer, staging)
        if to in GRAPHS:
            write_config(model, staging)
        write_tokenizer(tokenizer, source, staging)
        notes += write_sentence_modules(model, folder, source, staging)
        progress("Comparing it with PyTorch")
        reference, exported = torch_backend(model), open_backend(staging, to if to in GRAPHS else "torch")
        report = ExportReport(
            checkpoint=source,
            out=str(out),
            target=to,
            architecture=type(model).__name__,
            largest_difference=largest_difference(model, tokenizer, reference, exported),
            batches=len(batches(model, tokenizer)),
            megabytes=_megabytes(staging),
            max_length=reference.max_length,
            notes=notes,
        )
        if not report.largest_difference <= LARGEST:
            raise UserError(
                f"The export differs from PyTorch by {report.largest_difference:.1e}, more than {LARGEST}, so nothing "
                "was kept. Try other versions of transformers and of the runtime, and please report it."
            )
        write_card(report, model, staging)
    return report


def _megabytes(folder: Path) -> float:
    kinds = (".onnx", ".data", ".xml", ".bin", ".safetensors")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in kinds) / 1e6
