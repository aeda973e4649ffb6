"""`hf-posenc train`: the commonest options, in panels; all others pass through to the parser."""

import inspect
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from hf_posenc.errors import dashed
from hf_posenc.options import kind_of

from .application import app, loading, show_metrics
from .options import DECLARED, declared_option

PANELS = ("", "Data", "Model", "Optimizer and schedule", "Evaluation and what is kept", "Speed and memory")
"""The panels of the help, in order; the first has no name."""
SHOWN = {name: item for name, item in DECLARED.items() if item.metadata["option"].panel is not None}
"""The options that the help shows."""
_SWITCHES = {dashed(name) for name, item in SHOWN.items() if kind_of(item.type) is bool} | {"--resume-from-checkpoint"}


class _Train(TyperCommand):
    """Typer shows the help, completes, and says what is wrong with an option that it knows.

    `read_options`, which the scripts have too, reads the words: with underscores, and `--bf16` for `--bf16 true`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        written: list[str] = []
        for word, following in zip(args, [*args, "--"][1:], strict=True):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                word = name.replace("_", "-") + equals + value
            written.append(word)
            if word in _SWITCHES and following.startswith("-"):
                written.append("true")
        super().parse_args(ctx, [*written])
        ctx.args = written
        return written


def _list_all_options(wanted: bool) -> None:
    if wanted:
        from hf_posenc.finetuning.options import read_options

        read_options(["--help"], description="Options of hf-posenc train and of examples/run_classification.py.")


def train(context: typer.Context, help_all: bool, **_: Any) -> None:
    """Train a text classifier or regressor and write a checkpoint that strangers can load.

    From pretrained weights, which is best for 100 to 50,000 rows:
    `hf-posenc train -o runs/mine --train-file mine.csv --pretrained sentence-transformers/all-MiniLM-L6-v2`.
    Without `--pretrained` a small encoder learns from your rows alone.

    Here are the options that are asked for most. All others of `examples/run_classification.py`, and so every one of
    transformers' TrainingArguments, are accepted too: `--help-all` lists them. On two GPUs:
    `accelerate launch --multi_gpu --num_processes 2 -m hf_posenc.cli train` and the same options.
    """
    words = context.args
    defaults = ["--do-train", "true", "--do-eval", "true", "--score-test", "true"]
    if any(word.startswith("--test-file") for word in words):  # predict even without labels to score
        defaults += ["--do-predict", "true"]
    with loading():
        from hf_posenc.finetuning.early import check_run
        from hf_posenc.finetuning.options import as_training_arguments, read_options

        data, model, options = read_options([*defaults, *words])
        splits = check_run(data, model, options)  # before PyTorch is imported, which takes seconds
        from hf_posenc.finetuning import fine_tune

    training = as_training_arguments(options, **({"bf16": True} if _chooses_bf16(words) else {}))
    result = fine_tune(data, model, training, splits=splits)
    if training.process_index == 0:
        show_metrics(result.metrics)
        Console().print(f"Checkpoint, results and README are in {result.output_dir}", highlight=False)


def _chooses_bf16(words: list[str]) -> bool:
    """Whether training defaults to bfloat16, since it is fastest here and no other precision was asked for."""
    import torch

    from hf_posenc.machine import best_dtype

    decided = any(word.startswith(("--bf16", "--no-bf16", "--fp16", "--use-cpu")) for word in words)
    return not decided and best_dtype() == torch.bfloat16


def _type(hint: Any) -> Any:
    """The type in which Typer takes an option: switches are words, true or false."""
    kind = kind_of(hint)
    return str | None if kind is bool else kind | None


def _signature() -> inspect.Signature:
    """The signature that Typer reads: an option for each row of the panels."""
    context, help_all, *_ = inspect.signature(train).parameters.values()
    flag = typer.Option("--help-all", is_eager=True, callback=_list_all_options, help="List all other options.")
    help_all = help_all.replace(annotation=Annotated[bool, flag], default=False, kind=inspect.Parameter.KEYWORD_ONLY)
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if name == "output_dir" else None,
            annotation=Annotated[_type(item.type), declared_option(name, panel=panel or None)],
        )
        for panel in PANELS
        for name, item in SHOWN.items()
        if item.metadata["option"].panel == panel
    ]
    return inspect.Signature([context, *shown, help_all], return_annotation=None)


train.__signature__ = _signature()  # type: ignore[attr-defined]
app.command(cls=_Train, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(train)
