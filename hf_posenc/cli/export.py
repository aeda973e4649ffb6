"""`export`: a checkpoint for other runtimes, without code."""

from typing import Annotated, Literal

import typer
from rich.console import Console

from hf_posenc import options as shared

from .application import Checkpoint, Output, Overwrite, WritingCommand, app, loading, reads_data


@app.command(cls=WritingCommand)
@reads_data()
def export(
    context: typer.Context,
    checkpoint: Checkpoint,
    out: Output,
    to: Annotated[
        str,
        typer.Option(
            help="native (Transformers' own class), a class by name (bert, ..., mpnet), onnx (ONNX Runtime, Text "
            "Embeddings Inference) or openvino.",
        ),
    ],
    quantize: Annotated[
        Literal["int8"] | None, typer.Option(help="int8: smaller and faster, less exact. Default: float32.")
    ] = None,
    evaluate: Annotated[
        str | None, typer.Option(metavar="FILE", help="Labelled data to score before and after quantising.")
    ] = None,
    largest_drop: Annotated[
        float, typer.Option(help="How far accuracy (of a regression: Pearson's r) may fall by quantising.")
    ] = 0.01,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Texts for OpenVINO's int8 ranges; default: sentences that come along."),
    ] = None,
    overwrite: Overwrite = False,
    revision: shared.RevisionOption = None,
    trust_remote_code: shared.TrustOption = False,
) -> None:
    """Write a checkpoint as a folder without code for another runtime, and measure that it computes the same.

    ONNX and OpenVINO take every scheme and head; batch and length stay free. `native` writes the family that a
    checkpoint was converted from, else the first of the twelve that can hold it. Nothing is left where the answers
    differ from PyTorch by more than 1e-4, with `native` 1e-5, or where int8 lowers the score by more than
    `--largest-drop`.
    """
    with loading():
        from hf_posenc.exporting.run import export as run

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    print(run(**context.params, progress=lambda line: console.print(f"{line} ...", style="dim", markup=False)))
