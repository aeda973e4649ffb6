"""`hf-posenc train`."""

from dataclasses import fields

import typer

from hf_posenc.errors import is_main_process
from hf_posenc.options import Options

from .application import WritingCommand, app, data_options, loading, with_options


@app.command(cls=WritingCommand)
@with_options(*(item.name for item in fields(Options)))
def train(context: typer.Context) -> None:
    """Train a text classifier or regressor, and write a checkpoint that loads with transformers alone.

    Usually best with few rows: --data FILE --pretrained all-MiniLM-L6-v2 (folder or Hub name). [Brackets]: the
    default. On two GPUs: `torchrun --nproc_per_node 2 -m hf_posenc.cli train` and the same options.
    """
    options = data_options(context)
    with loading():
        from hf_posenc.finetuning.train import fine_tune

    result = fine_tune(options)
    if is_main_process():
        print(f"Checkpoint, results and README are in {result.output}")
