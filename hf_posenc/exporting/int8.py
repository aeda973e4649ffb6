"""int8: quantises an exported graph, measures what that costs and gains, and refuses it where it costs too much."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import r2_score
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import text_problem_type
from ..data.columns import find_columns
from ..data.preparing import Known, encode, encode_texts, prepare
from ..data.reading import read_file
from ..errors import UserError, spell
from ..inference.backends import GRAPHS, Backend, open_backend
from ..inference.logits import Row
from ..machine import processor
from ..options import Options
from ..tasks import task_of
from ..training.metrics import compute_metrics, predictions_from_logits
from .folder import megabytes
from .graph import empty_data_file, quietly, record_files
from .parity import LONGEST, Batch, answers_tokens, encode_rows, input_names, make_batch

GATES = {
    "single_label_classification": "accuracy",
    "multi_label_classification": "accuracy",
    "regression": "pearson",
}
"""The metric of each problem type that int8 may lower: all are at most 1, and more is better."""
_BATCH = 32


@dataclass
class Questions:
    """Texts as batches of like lengths, and the right answers where they are known."""

    rows: list[Row]
    """The token ids of each text, with what else the model takes."""
    batches: list[tuple[list[int], Batch]]
    """The numbers of its texts, and their inputs."""
    of_tokens: bool
    """Whether an answer has a row for each token."""
    problem_type: str | None
    """One of `GATES`; None where answers are no labels of texts."""
    labels: list[Any] | None
    """In the model's form. None: they aren't known."""
    data: str = ""
    """What was read of a file, used, left out and cut, and what is odd about it."""

    @property
    def metric(self) -> str | None:
        """Metric that answers are scored by; None: the right ones aren't known."""
        return None if self.labels is None else GATES[str(self.problem_type)]

    def score(self, answers: Sequence[np.ndarray]) -> float:
        """The metric of logits (C,) of each text."""
        kind = str(self.problem_type)
        labels = list(self.labels or ())
        return compute_metrics(predictions_from_logits(np.stack(answers), kind), labels, kind)[str(self.metric)]


@dataclass
class Int8Report:
    """Costs and gains of int8. Each pair is before and after.

    Attributes:
        megabytes: of the model's files, without tokenizer.
        texts_per_second: in batches of 32 texts of like lengths, the fastest of four passes.
        metric, score: accuracy, or `pearson` of a regression, and its values. None: without labelled data.
        agreement: with float32: the share of equal labels; of a regression R^2, the share of the variance of its
            numbers that is kept; the mean cosine of other answers.
        texts: how many were answered.
        evaluated_on: the file of labelled data. None: sentences that come along were answered.
        data: what was read of that file, used and left out, and what is odd about it.
        calibrated_on: where OpenVINO's ranges are from. None: ONNX Runtime finds them while it runs.
        alone: the largest difference of an answer alone from the same text's in a batch; where answers are larger than
            1, its part of them.
        processor: what it was measured on: on another an int8 graph may answer otherwise.
    """

    megabytes: tuple[float, float]
    texts_per_second: tuple[float, float]
    metric: str | None
    score: tuple[float, float] | None
    agreement: float
    texts: int
    evaluated_on: str | None
    data: str
    calibrated_on: str | None
    alone: float
    processor: str

    def metadata(self) -> dict[str, Any]:
        """The fields of a card's metadata."""
        measured = {"agreement": round(self.agreement, 4)}
        if self.score is not None:
            before, after = (round(value, 4) for value in self.score)
            measured |= {str(self.metric): after, f"{self.metric}_float32": before}
        return {"quantized": "int8", "int8": measured}

    def __str__(self) -> str:
        """One line, and a warning where nothing was scored."""
        score = "" if self.score is None else "{} {:.4f} -> {:.4f}, ".format(self.metric, *self.score)
        where = self.evaluated_on or "sentences that come along"
        line = (
            f"int8: {score}{self.megabytes[0]:.1f} -> {self.megabytes[1]:.1f} MB, {self.texts_per_second[0]:.0f} -> "
            f"{self.texts_per_second[1]:.0f} texts a second; agreement with float32 {self.agreement:.4f} on "
            f"{self.texts} texts ({where}); alone and in a batch answers differ by at most {self.alone:.1e}; "
            f"measured on {self.processor}"
        )
        line += f"; ranges of activations from {self.calibrated_on}." if self.calibrated_on else "."
        if self.data:
            line += f"\nLabelled data  {self.data}"
        if self.score is None:
            line += "\nWarning: nothing says what int8 costs in accuracy. Give labelled data to measure it: "
            line += f"{spell('evaluate', 'FILE')}."
        return line


def read_labelled(
    file: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    known: Known,
    options: Options | None = None,
) -> Questions:
    """The texts and labels of a file, as `hf-posenc evaluate` reads them.

    Raises:
        UserError: the file can't be read, its labels aren't the model's, or the model doesn't label texts.
    """
    if task_of(type(model).__name__) != "text-classification":
        raise UserError(
            f"scores labels of texts, and a {type(model).__name__} gives none. Leave it out: agreement with float32 is "
            "measured all the same.",
            parameter="evaluate",
            value=file,
        )
    options = options or Options()
    prepared = prepare({"test": read_file(file, options, known.dialect)}, options, known)
    limit = tokenizer.model_max_length
    encoded, cut = encode(prepared, tokenizer, limit)
    said = f" {cut['test']:,} of the texts were cut to {limit:,} tokens." if cut["test"] else ""
    rows = list(encoded["test"])
    if "labels" not in rows[0]:
        raise UserError("has no labels. Give labelled data, or leave it out.", parameter="evaluate", value=file)
    data = " ".join([prepared.summary.line + said, *prepared.summary.doubts])
    return replace(_batched(rows, model, tokenizer), data=data)


def read_calibration(
    file: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    known: Known,
    options: Options,
    most: int,
) -> Questions:
    """Texts from all over a file, or its pairs of texts, one in a batch: in the columns that the model was trained on.

    Raises:
        UserError: the file can't be read, or its texts aren't put together as those of the training.
    """
    table = read_file(file, options, known.dialect)
    texts = find_columns(table, options, known.columns, needs_label=False).texts(table)
    limit = min(tokenizer.model_max_length, LONGEST)
    every = -(-len(table) // most)
    encoded, cut = encode_texts([list(column)[::every] for column in texts], tokenizer, limit, split="calibration")
    said = f"{len(encoded):,} of {len(table):,} texts" + (f", {cut:,} cut to {limit:,} tokens" if cut else "")
    return replace(_batched(list(encoded), model, tokenizer, size=1), data=said)


def from_texts(
    texts: Sequence[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, size: int = _BATCH
) -> Questions:
    """Texts without labels, in batches of `size`."""
    rows = encode_rows(tokenizer, min(tokenizer.model_max_length, LONGEST), texts)
    return _batched(rows, model, tokenizer, size)


def _batched(
    rows: Sequence[Row], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, size: int = _BATCH
) -> Questions:
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]["input_ids"]))
    groups = [order[start : start + size] for start in range(0, len(rows), size)]
    names = input_names(model, tokenizer)
    inputs: list[Row] = [{name: row[name] for name in names} for row in rows]
    batches = [(group, make_batch([inputs[row] for row in group], model, tokenizer)) for group in groups]
    labels = [row["labels"] for row in rows] if "labels" in rows[0] else None
    problem_type = text_problem_type(model.config) if task_of(type(model).__name__) == "text-classification" else None
    return Questions(inputs, batches, answers_tokens(model), problem_type, labels)


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
        largest_drop: how far the metric of `GATES` may fall.
        evaluated_on: the name of the labelled data. None: there is none.
        calibrated_on: the name of the calibration texts.

    Raises:
        UserError: the metric falls further.
    """
    before, answers, _ = _measure(staging, to, questions)
    with quietly():
        if to == "onnx":
            _quantize_onnx(staging / GRAPHS[to])
        else:
            _quantize_openvino(staging / GRAPHS[to], calibration)
    record_files(staging, to, quantized="int8", measured_on=processor())
    after, others, alone = _measure(staging, to, questions)
    score = None
    if questions.metric is not None:
        was = questions.score(answers)
        now = questions.score(others)
        score = (was, now)
        if not was - now <= largest_drop:
            raise UserError(
                f"int8 lowers {questions.metric} on {evaluated_on} from {was:.4f} to {now:.4f}, by more than "
                f"{spell('largest_drop', largest_drop)}: nothing was kept. Export without {spell('quantize')}, or "
                "allow more."
            )
    return Int8Report(
        megabytes=(before[0], after[0]),
        texts_per_second=(before[1], after[1]),
        metric=questions.metric,
        score=score,
        agreement=agreement(answers, others, questions.problem_type),
        texts=len(answers),
        evaluated_on=evaluated_on,
        data=questions.data,
        calibrated_on=calibrated_on if to == "openvino" else None,
        alone=alone,
        processor=processor(),
    )


def _measure(staging: Path, to: str, questions: Questions) -> tuple[tuple[float, float], list[np.ndarray], float]:
    """A graph's megabytes and texts a second, its answers, and how far those of some texts alone are from them."""
    backend = open_backend(staging, to)
    some = questions.batches[:: max(1, len(questions.batches) // 8)]
    seconds = []
    for _ in range(4):  # the first prepares memory; other programs slow down some
        started = time.perf_counter()
        for _, batch in some:
            backend.logits(batch)
        seconds.append(time.perf_counter() - started)
    count = sum(len(numbers) for numbers, _ in some)
    answers = _answers(backend, questions)
    alone = max(_alone(backend, questions, numbers[0], batch, answers) for numbers, batch in some)
    return (megabytes(staging), count / min(seconds)), answers, alone


def _alone(backend: Backend, questions: Questions, number: int, batch: Batch, answers: Sequence[np.ndarray]) -> float:
    """The difference of the answer to the first text of a batch from that to the text alone, without padding."""
    length = int(batch["attention_mask"][0].sum(-1).max())
    (logits,) = backend.logits({name: part[:1, ..., :length] for name, part in batch.items()})
    alone = logits[: len(answers[number])] if questions.of_tokens else logits
    return float(np.abs(alone - answers[number]).max() / max(1.0, np.abs(alone).max()))


def _answers(backend: Backend, questions: Questions) -> list[np.ndarray]:
    """The logits of each text, in order: (C,), or (S, C) of its tokens."""
    answers: dict[int, np.ndarray] = {}
    for numbers, batch in questions.batches:
        for number, size, logits in zip(numbers, batch["attention_mask"].sum(-1), backend.logits(batch), strict=True):
            answers[number] = logits[:size] if questions.of_tokens else logits
    return [answers[number] for number in range(len(answers))]


def agreement(answers: Sequence[np.ndarray], others: Sequence[np.ndarray], problem_type: str | None) -> float:
    """The share of equal labels; of a regression R^2; else the mean cosine of the answers."""
    if problem_type not in (None, "regression"):
        labels, other = (predictions_from_logits(np.stack(part), str(problem_type)) for part in (answers, others))
        return float((labels == other).reshape(len(labels), -1).all(1).mean())
    if problem_type == "regression":  # which a cosine of single numbers, 1 or -1, says nothing of
        return float(r2_score(np.stack(answers), np.stack(others)))
    pairs = zip(answers, others, strict=True)
    flat = [(first.ravel().astype(np.float64), second.ravel().astype(np.float64)) for first, second in pairs]
    return float(np.mean([a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12) for a, b in flat]))


_ROWS = """
<domain: "hf_posenc", opset_import: ["" : 18]>
QuantizeRows (x) => (quantized, one, zero_point, scale) {
    axes = Constant <value = int64[1] {-1}> ()
    least = Constant <value = float {1e-30}> ()
    steps = Constant <value = float {127.0}> ()
    middle = Constant <value = float {128.5}> ()
    one = Constant <value = float {1.0}> ()
    zero_point = Constant <value = uint8 {128}> ()
    size = Abs (x)
    largest = ReduceMax <keepdims = 1> (size, axes)
    positive = Max (largest, least)
    scale = Div (positive, steps)
    factor = Div (steps, positive)
    scaled = Mul (x, factor)
    shifted = Add (scaled, middle)
    quantized = Cast <to = 2> (shifted)
}
"""
"""Each token's vector in 8 bits of its own range."""


def _quantize_onnx(path: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = path.with_name("int8.onnx")
    # Weights of 7 bits: on a processor without VNNI sums of two products of 8 bits don't fit into 16.
    quantize_dynamic(path, small, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
    model = onnx.load(small)
    _scale_by_row(model)
    onnx.save(model, small)
    os.replace(small, path)
    empty_data_file(path)  # a large graph's was full


def _scale_by_row(model: Any) -> None:
    """Gives each token a range of its own: the runtime's is the whole batch's, on which a text's answer then depends.

    A product is multiplied by its rows' scales at its end. Before, ONNX Runtime would take them for a single number.
    """
    import onnx.parser

    nodes = list(model.graph.node)
    of_rows = {node.output[1]: f"{node.output[1]}_of_rows" for node in nodes if node.op_type == "DynamicQuantizeLinear"}
    multiplied = [(name, node) for node in nodes if node.op_type == "Mul" for name in node.input]
    of_products = {node.output[0]: of_rows[name] for name, node in multiplied if name in of_rows}
    for node in nodes:
        if node.op_type == "DynamicQuantizeLinear":
            node.op_type, node.domain = "QuantizeRows", "hf_posenc"
            node.output.append(of_rows[node.output[1]])
    for name, node in multiplied:
        if name in of_products:
            (product,) = node.output
            node.output[0] = f"{product}_without_rows"
            nodes.append(onnx.helper.make_node("Mul", [node.output[0], of_products[name]], [product]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.functions.append(onnx.parser.parse_function(_ROWS))
    model.opset_import.append(onnx.helper.make_opsetid("hf_posenc", 1))


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
