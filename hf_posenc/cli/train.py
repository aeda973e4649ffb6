"""`hf-posenc train`: the commonest options, in panels; all others pass through to the parser."""

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hf_posenc.errors import UserError

from .application import app, loading, plain_console, show_metrics
from .options import DECLARED, declared_parameter

PANELS = ("", "Data", "Model", "Optimizer and schedule", "Evaluation and what is kept", "Speed and memory")
"""The panels of the help, in order; the first has no name."""
SHOWN = {name: item for name, item in DECLARED.items() if item.metadata["option"].panel is not None}
"""The options that the help shows."""
_SHOWING = {"-h", "--help", "--help-all"}


class _Train(TyperCommand):
    """Typer shows the help and completes; `read_options` reads the options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing or _SHOWING & {*args}:
            return super().parse_args(ctx, args)
        ctx.args = list(args)
        return ctx.args


def _list_all_options(wanted: bool) -> None:
    if wanted:
        from hf_posenc.finetuning.options import read_options

        read_options(["--help"], description="Options of hf-posenc train.")


def train(context: typer.Context, **_: Any) -> None:
    """Train a text classifier or regressor and write a checkpoint that strangers can load.

    From pretrained weights, which is best for 100 to 50,000 rows:
    `hf-posenc train -o runs/mine --train-file mine.csv --pretrained sentence-transformers/all-MiniLM-L6-v2`.
    Without `--pretrained` a small encoder learns from your rows alone.

    Here are the options that are asked for most. `--help-all` lists all others, every one of transformers'
    TrainingArguments among them. On two GPUs:
    `accelerate launch --multi_gpu --num_processes 2 -m hf_posenc.cli train` and the same options.
    """
    with loading():
        from hf_posenc.finetuning.early import check_run
        from hf_posenc.finetuning.options import as_training_arguments, read_options

        # None: by the test file, and by the processor.
        defaults = {"do_train": True, "do_eval": True, "score_test": True, "do_predict": None, "bf16": None}
        data, model, options = read_options(context.args, defaults=defaults)
        if options.output_dir is None:
            raise UserError("--output-dir is missing. Name a folder for the checkpoint: -o runs/mine.")
        if options.do_predict is None:  # even without labels to score
            options.do_predict = data.test_file is not None
        splits = check_run(data, model, options)  # before PyTorch is imported, which takes seconds
        import torch

        from hf_posenc.finetuning import fine_tune
        from hf_posenc.machine import best_dtype

    if options.bf16 is None:
        options.bf16 = not (options.fp16 or options.use_cpu) and best_dtype() == torch.bfloat16
    training = as_training_arguments(options)
    result = fine_tune(data, model, training, splits=splits)
    if training.process_index == 0:
        show_metrics(result.metrics)
        plain_console().print(f"Checkpoint, results and README are in {result.output_dir}")


def _signature() -> inspect.Signature:
    """The signature that Typer reads: an option for each row of the panels."""
    context, *_ = inspect.signature(train).parameters.values()
    flag = typer.Option("--help-all", is_eager=True, callback=_list_all_options, help="List all other options.")
    help_all = inspect.Parameter(
        "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, flag]
    )
    shown = [
        declared_parameter(name, inspect.Parameter.empty if name == "output_dir" else None, panel=panel or None)
        for panel in PANELS
        for name, item in SHOWN.items()
        if item.metadata["option"].panel == panel
    ]
    return inspect.Signature([context, *shown, help_all], return_annotation=None)


train.__signature__ = _signature()  # type: ignore[attr-defined]
app.command(cls=_Train, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(train)
