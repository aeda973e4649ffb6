"""`export`: a checkpoint for other runtimes, without code."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Annotated, Literal

import typer

from hf_posenc import options as shared

from .application import CheckpointName, Output, Overwrite, WritingCommand, app, loading, reads_data


@app.command(cls=WritingCommand)
@reads_data()
def export(
    context: typer.Context,
    checkpoint: CheckpointName,
    output: Output,
    to: Annotated[
        str,
        typer.Option(
            help="Format: native (Transformers' own class), a class by name (bert, ..., mpnet), onnx (ONNX Runtime, "
            "Text Embeddings Inference) or openvino.",
        ),
    ],
    quantize: Annotated[
        Literal["int8"] | None, typer.Option(help="To int8: smaller and faster, less exact. Default: float32.")
    ] = None,
    evaluate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Labelled data to score in float32 and in int8.")
    ] = None,
    largest_drop: Annotated[
        float | None, typer.Option(help="How far accuracy (of a regression: Pearson's r) may fall. Default: 0.01.")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Texts for OpenVINO's int8 ranges. Default: sentences that come along."),
    ] = None,
    overwrite: Overwrite = False,
    revision: shared.RevisionOption = None,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Write a checkpoint as a folder without code for another runtime, and measure that it computes the same.

    ONNX and OpenVINO take every scheme and head; batch and length stay free. `native` writes the family that a
    checkpoint was converted from, else the first family that can hold it. Nothing is left where the answers
    differ from PyTorch by more than 1e-4, with `native` 1e-5, or where int8 lowers the score by more than
    `--largest-drop`.
    """
    with loading():
        from hf_posenc.exporting.run import export as run

    with _steps_shown():
        print(run(**context.params))


@contextlib.contextmanager
def _steps_shown() -> Iterator[None]:
    """Shows on standard error the steps that an export logs."""
    steps = logging.getLogger("hf_posenc.exporting.run")
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("%(message)s ..."))
    steps.addHandler(shown)
    steps.setLevel(logging.INFO)
    try:
        yield
    finally:
        steps.removeHandler(shown)
        steps.setLevel(logging.NOTSET)
