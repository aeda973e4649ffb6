"""`export`: a checkpoint to another runtime's folder, checked, whole or not at all."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.files import training_marks
from ..checkpoints.keeper import check_apart, output_folder
from ..checkpoints.loading import input_length, knowledge, load_any
from ..checkpoints.opening import Checkpoint, open_checkpoint, read_config
from ..checkpoints.sentence_modules import write_modules
from ..checkpoints.tokenizers import load_checked_tokenizer
from ..conversion.families import FAMILIES
from ..data.preparing import Known
from ..data.texts import own_texts
from ..errors import UserError, checks_types, spell
from ..files import expanded, last_name
from ..inference.backends import GRAPHS, Backend, open_backend, torch_backend
from ..options import FROM_0_TO_1, OF_LABELS, READING, Options, check_range, reading_options, refuse_given
from ..quiet import alone, without_bars
from .folder import megabytes, write_card, write_config, write_sentence_modules, write_tokenizer
from .graph import check_packages, weights_apart, write_graph
from .int8 import Int8Report, from_texts, quantize_graph, read_calibration, read_labelled
from .native import what_holds, write
from .parity import LARGEST, Batch, batches, measure_parity

logger = logging.getLogger(__name__)

TARGETS = ("native", *GRAPHS)
"""What a checkpoint can be exported to."""
_LARGEST_DROP = 0.01
"""Unless it is said."""
_CALIBRATED_WITH = 300
"""Texts that ranges of activations are taken from."""


@dataclass(frozen=True)
class Written:
    """Account of what was written into an empty folder."""

    notes: list[str]
    """For the user."""
    exported: Backend
    """It, opened anew."""
    compared: list[Batch]
    """Where it must answer as the checkpoint does."""
    allowed: float
    """The largest difference."""


def _write(
    to: str,
    like: str | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    checkpoint: Checkpoint,
    staging: Path,
) -> Written:
    """Writes a checkpoint into `staging`."""
    write_modules(staging, training_marks(checkpoint.folder))
    if to == "native":
        notes = write(model, tokenizer, staging, like=like, dtype=checkpoint.dtype)
        compared = batches(model, tokenizer, **what_holds(model, staging))
        return Written(notes, torch_backend(load_any(open_checkpoint(staging))), compared, LARGEST / 10)
    write_graph(to, model, tokenizer, staging)
    write_config(model, tokenizer.model_max_length, staging)
    write_tokenizer(tokenizer, staging)
    return Written([], open_backend(staging, to), batches(model, tokenizer), LARGEST)


@dataclass
class ExportReport:
    """Report of what was exported, and how exactly.

    Attributes:
        checkpoint, output: the folder that was read, and the one that was written.
        target, architecture: the format (`native`, `onnx` or `openvino`), and the class that loads it.
        largest_difference: of an answer from PyTorch's in float32; where answers are larger than 1, its part of them.
        batches: how many were compared.
        megabytes: of the model's files, without tokenizer.
        max_length: where the table of positions ends. None: no limit.
        notes: other remarks.
        int8: what int8 costs and gains, an `Int8Report`. None: it is float32.
    """

    checkpoint: str
    output: str
    target: str
    architecture: str
    largest_difference: float
    batches: int
    megabytes: float
    max_length: int | None
    notes: list[str] = field(default_factory=list)
    int8: Int8Report | None = None

    def __str__(self) -> str:
        """Lines for the terminal."""
        limit = f"at most {self.max_length} tokens" if self.max_length else "any length"
        compared = "It differs" if self.int8 is None else "Before it was quantised, it differed"
        lines = [
            f"{self.architecture} for {self.target} is in {self.output}: {self.megabytes:.1f} MB, {limit}.",
            f"{compared} from PyTorch by at most {self.largest_difference:.1e} (of answers above 1: of their size), on "
            f"{self.batches} batches of texts.",
        ]
        return "\n".join([*lines, *([] if self.int8 is None else [str(self.int8)]), *self.notes])


@checks_types
@alone()
@without_bars()
def export(
    checkpoint: str | Path,
    output: str | Path,
    *,
    to: str,
    quantize: str | None = None,
    evaluate: str | Path | None = None,
    largest_drop: float | None = None,
    calibrate: str | Path | None = None,
    overwrite: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **reading: Any,
) -> ExportReport:
    """Writes a checkpoint as a folder without code that another runtime loads, and compares it with PyTorch.

    The log tells each step, at the level INFO.

    Args:
        checkpoint: folder or Hub name; any head, a PosEnc encoder or one of Transformers' own.
        output: the folder to write, whole or not at all.
        to: `native` (a model of Transformers' own: of the family that it was converted from, else of the first that
            can hold it), the name of such a family (`bert`, ..., `mpnet`), `onnx` or `openvino`.
        quantize: `int8`: weights and matrix products in 8 bits. ONNX Runtime finds the ranges of activations while it
            runs, OpenVINO on texts. None: float32.
        evaluate: labelled data to score before and after, a file as `hf-posenc evaluate` takes it. None: a warning.
        largest_drop: how far the score may fall: accuracy, or Pearson's r of a regression. None: 0.01.
        calibrate: texts for OpenVINO's ranges, a file like those that the model will read, of which at most 300 are
            taken, evenly. None: sentences that come along.
        overwrite: replace what was written into `output`, when the new files are complete.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: run the checkpoint's code, for a scheme of its author's own.
        **reading: how `evaluate` and `calibrate` are read, by the options of `hf-posenc evaluate`, such as `delimiter`.

    Returns:
        What was written and how it compares.

    Raises:
        UserError: the target is unknown or its packages are missing; the checkpoint can't be read or has no tokenizer;
            no class of Transformers can hold it; `output` can't be written; what was written differs from PyTorch by
            more than 1e-4, `native` 1e-5; or int8 lowers the score by more than `largest_drop`. Nothing is left then.
    """
    source = str(expanded(checkpoint))
    output = expanded(output)
    labelled, texts = (None if path is None else str(expanded(path)) for path in (evaluate, calibrate))
    to, like = _target(to)
    _check_int8(to, quantize, labelled, largest_drop, texts)
    options = _reading_options(labelled, texts, reading)
    check_packages(to, quantize)
    check_apart(output, source)
    with output_folder(output, overwrite=overwrite) as folder:
        logger.info("Loading %s", source)
        opened = open_checkpoint(source, revision=revision, trust_remote_code=trust_remote_code)
        model = load_any(opened)
        tokenizer = load_checked_tokenizer(opened, model.config)
        tokenizer.model_max_length = input_length(model, tokenizer)
        # Read now: a bad file is told before minutes are spent.
        known = knowledge(model.config, opened)
        quantizer = None
        if quantize is not None:
            quantizer = _quantizer(labelled, texts, largest_drop, model, tokenizer, known, options)
        with folder.replaced() as staging:
            logger.info("Writing %s for %s", type(model).__name__, to)
            written = _write(to, like, model, tokenizer, opened, staging)
            notes = written.notes + write_sentence_modules(model, opened, tokenizer.model_max_length, staging)
            logger.info("Comparing it with PyTorch")
            report = ExportReport(
                checkpoint=source,
                output=str(output),
                target=to,
                architecture=read_config(staging, str(staging))["architectures"][0],
                largest_difference=_compared(model, written),
                batches=len(written.compared),
                megabytes=megabytes(staging),
                max_length=written.exported.max_length,
                notes=notes,
            )
            if quantizer:
                _quantize(report, quantizer, staging)
            report.notes += weights_apart(staging)
            write_card(report, opened, model, staging)
        return report


def _target(to: str) -> tuple[str, str | None]:
    """The format, and the family that was named for it; refuses what is neither."""
    if to in FAMILIES:
        return "native", to
    if to in TARGETS:
        return to, None
    targets = ", ".join((*TARGETS, *FAMILIES))
    raise UserError(f"is unknown. Choose one of {targets}.", parameter="to", value=to)


def _quantizer(
    evaluate: str | None,
    calibrate: str | None,
    largest_drop: float | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    known: Known,
    options: Options,
) -> Callable[[Path, str], Int8Report]:
    """Reads the data that a graph is quantised and measured with; what it returns quantises a folder of a format."""
    labelled = None if evaluate is None else read_labelled(evaluate, model, tokenizer, known, options)
    calibrated_on = "sentences that come along"
    if calibrate is None:
        calibration = from_texts(own_texts(_CALIBRATED_WITH), model, tokenizer, size=1)
    else:
        calibration = read_calibration(calibrate, model, tokenizer, known, options, most=_CALIBRATED_WITH)
        calibrated_on = f"{last_name(calibrate)} ({calibration.data})"
    return partial(
        quantize_graph,
        questions=labelled or from_texts(own_texts(256), model, tokenizer),
        calibration=calibration,
        largest_drop=_LARGEST_DROP if largest_drop is None else largest_drop,
        evaluated_on=None if evaluate is None else last_name(evaluate),
        calibrated_on=calibrated_on,
    )


def _quantize(report: ExportReport, quantizer: Callable[[Path, str], Int8Report], staging: Path) -> None:
    """Quantises what was written, and reports what that costs and gains."""
    logger.info("Quantising it to int8, and measuring both")
    report.int8 = quantizer(staging, report.target)
    report.megabytes = report.int8.megabytes[1]


def _compared(model: PreTrainedModel, written: Written) -> float:
    """The largest difference of what was written from the model; refuses one that is too large."""
    difference = measure_parity(model, written.compared, torch_backend(model), written.exported)
    if not difference <= written.allowed:
        raise UserError(
            f"The export differs from PyTorch by {difference:.1e}, more than {written.allowed}, so nothing was "
            "kept. Try other versions of transformers and of the runtime, and please report it."
        )
    return difference


def _reading_options(evaluate: str | None, calibrate: str | None, reading: dict[str, Any]) -> Options:
    """Options by which the files are read; refuses what has no effect on those that are given."""
    options = reading_options(reading)
    if evaluate is None:
        refuse_given(options, OF_LABELS if calibrate else READING, f"is for the data of {spell('evaluate')}")
    return options


def _check_int8(
    to: str, quantize: str | None, evaluate: str | None, largest_drop: float | None, calibrate: str | None
) -> None:
    """Refuses options of quantisation that don't fit."""
    if quantize not in (None, "int8"):
        raise UserError("is unknown. Give int8, or leave it out.", parameter="quantize", value=quantize)
    if quantize is not None and to not in GRAPHS:
        graphs = " and ".join(GRAPHS)
        raise UserError(f"is for {graphs}, not for {to}. Leave it out.", parameter="quantize", value=quantize)
    for name, value in (("evaluate", evaluate), ("calibrate", calibrate)):
        if value is not None and quantize is None:
            wanted = f"is for {spell('quantize', 'int8')}. Give both, or neither."
            raise UserError(wanted, parameter=name, value=value)
        if value is not None and not Path(value).is_file():
            raise UserError(": there is no such file.", parameter=name, value=value)
    if calibrate is not None and to != "openvino":
        wanted = f"is for openvino; {to} finds the ranges while it runs. Leave it out."
        raise UserError(wanted, parameter="calibrate", value=calibrate)
    check_range("largest_drop", largest_drop, FROM_0_TO_1)
    if evaluate is None and largest_drop is not None:
        wanted = f"is for the score of {spell('evaluate')}. Give both, or leave it out."
        raise UserError(wanted, parameter="largest_drop", value=largest_drop)
