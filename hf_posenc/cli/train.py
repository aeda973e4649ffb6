"""`hf-posenc train`: the commonest options, in panels; all others pass through to the parser."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from .application import app, loading, show_metrics
from .options import complete_preset, complete_scheme, here_or_hub, one_of

_SWITCH, _SWITCH_OR_FOLDER = "BOOL", "BOOL|FOLDER"


@dataclass(frozen=True)
class _Option:
    """An option of `hf_posenc.training.arguments`, as its help shows it."""

    name: str
    help: str
    kind: type = str
    metavar: str | None = None
    complete: Callable[[str], list[str]] | None = None
    short: tuple[str, ...] = ()
    is_source: bool = False
    """Whether it is a folder or a name on the Hub, looked for before PyTorch is imported."""

    def parameter(self, panel: str | None) -> inspect.Parameter:
        """The Typer parameter of this option."""
        long = "--" + self.name.replace("_", "-")
        option = typer.Option(
            long,
            *self.short,
            help=self.help,
            metavar=self.metavar,
            autocompletion=self.complete,
            callback=here_or_hub if self.is_source else None,
            rich_help_panel=panel,
            show_default=False,
        )
        required = self.name == "output_dir"
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if required else None,
            annotation=Annotated[self.kind if required else self.kind | None, option],
        )


PANELS: dict[str | None, tuple[_Option, ...]] = {
    None: (
        _Option("output_dir", "Folder for the checkpoint.", short=("-o",)),
        _Option(
            "overwrite_output_dir",
            "Replace the run that the folder holds, when the new one has ended.",
            metavar=_SWITCH,
        ),
        _Option(
            "resume_from_checkpoint",
            "Resume from the newest whole checkpoint, or from a checkpoint-N.",
            metavar=_SWITCH_OR_FOLDER,
        ),
        _Option("seed", "Seed of weights and order; default 42.", int),
    ),
    "Data": (
        _Option("train_file", "Training data: .csv, .tsv, .json, .jsonl (also .gz), .parquet."),
        _Option("validation_file", "Validation data; else 10 % is set aside."),
        _Option("test_file", "Test data, scored and labelled at the end."),
        _Option(
            "dataset_name",
            "A Hub data set, a folder of split files, or blimp_order, which comes with the package.",
            is_source=True,
        ),
        _Option("delimiter", "Between csv columns; default: found."),
        _Option("text_column_names", "Text column; two, with a comma, for pairs."),
        _Option("label_column_name", "Label column."),
        _Option("label_delimiter", "Between several labels in one cell."),
        _Option(
            "task", "classification, regression, or tokens: a label for each word. Default: what the labels look like."
        ),
        _Option("skip_missing", "Leave rows without label or text out.", metavar=_SWITCH),
        _Option("max_seq_length", "Longer inputs are cut to this many tokens.", int),
        _Option("streaming", "Read data while training; needs --max-steps.", metavar=_SWITCH),
    ),
    "Model": (
        _Option(
            "pretrained", "Start from these weights, of BERT and its kin: best for 100 to 50,000 rows.", is_source=True
        ),
        _Option(
            "position_embedding_type",
            "Positional scheme: see `schemes`; default rope, or the pretrained one.",
            complete=complete_scheme,
        ),
        _Option("position_embedding_kwargs", "The scheme's own arguments.", metavar="JSON"),
        _Option("scheme_file", "A Python file with a scheme of your own."),
        _Option(
            "position_augmentation",
            "Positions in training: none (default), shift or random.",
            complete=one_of("none", "shift", "random"),
        ),
        _Option("config_preset", "Size of a new encoder: tiny (default), mini, small, base.", complete=complete_preset),
        _Option("classifier_pooling", "mean (default), cls or max.", complete=one_of("mean", "cls", "max")),
        _Option("model_name_or_path", "Start from a checkpoint of ours, as it is.", is_source=True),
        _Option("lora", "Train low-rank changes of trained weights (PEFT).", metavar=_SWITCH),
        _Option("tokenizer_name", "A trained tokenizer; else one is trained here.", is_source=True),
    ),
    "Optimizer and schedule": (
        _Option("num_train_epochs", "Passes over the training data; default by their number.", float),
        _Option("max_steps", "Steps, instead of passes.", int),
        _Option("learning_rate", "Peak of AdamW's; default by model size.", float),
        _Option(
            "search",
            "Try N rates, dropouts and starts first, on the validation data, a third of the steps each.",
            int,
            "N",
        ),
        _Option(
            "lr_scheduler_type",
            "linear (default), cosine, constant_with_warmup, ...",
            complete=one_of("linear", "cosine", "constant", "constant_with_warmup", "polynomial"),
        ),
        _Option("one_cycle", "The one-cycle schedule instead.", metavar=_SWITCH),
        _Option("warmup_steps", "Steps to warm up; below 1, a share of all; default 0.1.", float),
        _Option("weight_decay", "AdamW's; default 0.", float),
        _Option("max_grad_norm", "Gradients are clipped to this; default 1.", float),
        _Option("class_weights", 'balanced, or JSON {"rare": 5, "common": 1}: how much a label counts.'),
    ),
    "Evaluation and what is kept": (
        _Option("compare_none", "Train without positions too: is that as good?", metavar=_SWITCH),
        _Option(
            "eval_strategy",
            "When to evaluate and save: epoch (default), steps, no.",
            complete=one_of("epoch", "steps", "no"),
        ),
        _Option("early_stopping_patience", "Stop after this many evaluations without a better one.", int),
        _Option("metric_for_best_model", "What is better: macro_f1 (default), accuracy, loss, ..."),
        _Option("load_best_model_at_end", "Keep the best weights (default), or the last.", metavar=_SWITCH),
        _Option(
            "keep_checkpoints", "Keep what a run resumes from when it has ended, too (default: false).", metavar=_SWITCH
        ),
    ),
    "Speed and memory": (
        _Option("per_device_train_batch_size", "Batch size; default 32.", int),
        _Option("gradient_accumulation_steps", "Batches per step; default 1.", int),
        _Option("bf16", "Train in mixed precision. Default: where the processor has bfloat16.", metavar=_SWITCH),
    ),
}
_SWITCHES = {
    "--" + option.name.replace("_", "-")
    for options in PANELS.values()
    for option in options
    if option.metavar in (_SWITCH, _SWITCH_OR_FOLDER)
}


class _Train(TyperCommand):
    """Accepts options as transformers' scripts do: with underscores, and `--bf16` for `--bf16 true`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        written: list[str] = []
        for word, following in zip(args, [*args, "--"][1:], strict=True):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                word = name.replace("_", "-") + equals + value
            written.append(word)
            if word in _SWITCHES and following.startswith("-"):
                written.append("true")
        return super().parse_args(ctx, written)


def _list_all_options(wanted: bool) -> None:
    if wanted:
        from hf_posenc.finetuning import parse_arguments

        parse_arguments(["--help"], "Options of hf-posenc train and of examples/run_classification.py.")


def train(context: typer.Context, help_all: bool, **options: Any) -> None:
    """Train a text classifier or regressor and write a checkpoint that strangers can load.

    From pretrained weights, which is best for 100 to 50,000 rows:
    `hf-posenc train -o runs/mine --train-file mine.csv --pretrained sentence-transformers/all-MiniLM-L6-v2`.
    Without `--pretrained` a small encoder learns from your rows alone.

    Here are the options that are asked for most. All others of `examples/run_classification.py`, and so every one of
    transformers' TrainingArguments, are accepted too: `--help-all` lists them. On two GPUs:
    `accelerate launch --multi_gpu --num_processes 2 -m hf_posenc.cli train` and the same options.
    """
    with loading():
        from hf_posenc.finetuning import fine_tune, parse_arguments

    arguments = ["--do_train", "true", "--do_eval", "true", "--score_test", "true"]
    if options["test_file"]:  # predict even without labels to score
        arguments += ["--do_predict", "true"]
    if _chooses_bf16(options["bf16"], context.args):
        options["bf16"] = "true"
    for name, value in options.items():
        if value is not None:
            arguments += [f"--{name}", str(value)]
    data, model, training = parse_arguments([*arguments, *context.args])
    result = fine_tune(data, model, training)
    if training.process_index == 0:
        show_metrics(result.metrics)
        Console().print(f"Checkpoint, results and README are in {result.output_dir}", highlight=False)


def _chooses_bf16(given: str | None, others: list[str]) -> bool:
    """Whether training defaults to bfloat16, since it is fastest here and no other precision was asked for."""
    import torch

    from hf_posenc.machine import best_dtype

    decided = any(word.startswith(("--fp16", "--use-cpu", "--use_cpu", "--no-bf16", "--no_bf16")) for word in others)
    return given is None and not decided and best_dtype() == torch.bfloat16


def _signature() -> inspect.Signature:
    """The signature that Typer reads: an option for each row of `PANELS`."""
    context, help_all, *_ = inspect.signature(train).parameters.values()
    flag = typer.Option("--help-all", is_eager=True, callback=_list_all_options, help="List all other options.")
    help_all = help_all.replace(annotation=Annotated[bool, flag], default=False, kind=inspect.Parameter.KEYWORD_ONLY)
    shown = [option.parameter(panel) for panel, options in PANELS.items() for option in options]
    return inspect.Signature([context, *shown, help_all], return_annotation=None)


train.__signature__ = _signature()  # type: ignore[attr-defined]
app.command(cls=_Train, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(train)
