"""int8: quantises an exported graph, measures what that costs and gains, and refuses it where it costs too much."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..finetuning.backends import GRAPHS, open_backend
from .folder import megabytes
from .graph import quietly, record_files
from .scoring import GATES, Questions, agreement, answer, score


@dataclass
class Int8Report:
    """What int8 costs and gains. Each pair is before and after."""

    megabytes: tuple[float, float]
    texts_per_second: tuple[float, float]
    """In batches of 32 texts of like lengths: the fastest of four passes."""
    scores: dict[str, tuple[float, float]]
    """The metrics of the task; empty without labelled data."""
    agreement: float
    """With float32; see `scoring.agreement`."""
    texts: int
    evaluated_on: str | None
    """The file of labelled data."""
    calibrated_on: str | None

    def rows(self) -> list[tuple[str, str, str]]:
        """A table: what, in float32, in int8."""
        sizes = [("MB", *(f"{value:.1f}" for value in self.megabytes))]
        speeds = [("texts a second", *(f"{value:.0f}" for value in self.texts_per_second))]
        scores = [(name, *(f"{value:.4f}" for value in pair)) for name, pair in self.scores.items()]
        return [*sizes, *speeds, *scores]  # type: ignore[list-item]

    def remarks(self) -> list[str]:
        """What the table doesn't say."""
        where = self.evaluated_on or "sentences that come along"
        lines = [f"Agreement of int8 with float32: {self.agreement:.4f} on {self.texts} texts ({where})."]
        if self.calibrated_on is not None:
            lines.append(f"Ranges of activations are from {self.calibrated_on}.")
        if self.evaluated_on is None:
            lines.append(
                "Warning: nothing says what int8 costs in accuracy. Measure it with --evaluate FILE, labelled data."
            )
        return lines


def quantize_graph(
    staging: Path,
    to: str,
    questions: Questions,
    calibration: Questions,
    *,
    largest_drop: float,
    evaluated_on: str | None,
    calibrated_on: str,
) -> Int8Report:
    """Replaces an exported graph by its int8 form, measured before and after.

    Args:
        staging: the exported folder, in float32.
        to: its format.
        questions: what both answer.
        calibration: what OpenVINO takes ranges of activations from; ONNX Runtime finds them while it runs.
        largest_drop: how far the task's metric (`GATES`) may fall.
        evaluated_on: the name of the labelled data. None: there is none.
        calibrated_on: the name of the calibration texts.

    Raises:
        UserError: the metric falls further.
    """
    before, answers = _measure(staging, to, questions)
    with quietly():
        if to == "onnx":
            _quantize_onnx(staging / GRAPHS[to])
        else:
            _quantize_openvino(staging / GRAPHS[to], calibration)
    record_files(staging, to, quantized="int8")
    after, others = _measure(staging, to, questions)
    scores, small_scores = score(answers, questions), score(others, questions)
    if scores:
        metric = GATES[str(questions.problem_type)]
        if not scores[metric] - small_scores[metric] <= largest_drop:
            raise UserError(
                f"int8 lowers {metric} on {evaluated_on} from {scores[metric]:.4f} to {small_scores[metric]:.4f}, "
                f"by more than --largest-drop {largest_drop:g}: nothing was kept. Export without --quantize, or allow "
                "more."
            )
    return Int8Report(
        megabytes=(before[0], after[0]),
        texts_per_second=(before[1], after[1]),
        scores={name: (value, small_scores[name]) for name, value in scores.items()},
        agreement=agreement(answers, others, questions),
        texts=len(answers),
        evaluated_on=evaluated_on,
        calibrated_on=calibrated_on if to == "openvino" else None,
    )


def _measure(staging: Path, to: str, questions: Questions) -> tuple[tuple[float, float], list[np.ndarray]]:
    """A graph's megabytes and texts a second, and its answers."""
    backend = open_backend(staging, to)
    some = questions.batches[:: max(1, len(questions.batches) // 8)]
    seconds = []
    for _ in range(4):  # the first prepares memory; other programs slow down some
        started = time.perf_counter()
        for _, batch in some:
            backend.logits(batch)
        seconds.append(time.perf_counter() - started)
    count = sum(len(numbers) for numbers, _ in some)
    return (megabytes(staging), count / min(seconds)), answer(backend, questions)


def _quantize_onnx(path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = path.with_name("int8.onnx")
    quantize_dynamic(path, small, per_channel=True, weight_type=QuantType.QInt8)
    os.replace(small, path)


def _quantize_openvino(path: Path, calibration: Questions) -> None:
    import nncf
    import openvino

    model = openvino.Core().read_model(str(path))
    names = [port.get_any_name() for port in model.inputs]
    feeds = [{name: batch[name] for name in names} for _, batch in calibration.batches]
    small = nncf.quantize(model, nncf.Dataset(feeds), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(feeds))
    folder = path.with_name("int8")
    openvino.save_model(small, str(folder / path.name), compress_to_fp16=False)
    for file in list(folder.iterdir()):  # what is mapped of the old ones stays readable
        os.replace(file, path.with_name(file.name))
    folder.rmdir()
