"""The command line, thin over the package: `hf-posenc COMMAND --help` says what each command does."""

import contextlib
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

import hf_posenc
from hf_posenc import _ctrl_c
from hf_posenc.training.errors import as_typed, check_is_checkpoint, check_local, explain, speak_as_typed

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer may bring its own click, or import it


class _Ended(Exception):
    """Carries what typer would end in its own way, without our line."""


@contextlib.contextmanager
def _in_our_words(ctx: Any) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError) as error:
        raise _Ended from error
    except _UsageError as error:
        where = getattr(getattr(error, "ctx", None) or ctx, "command_path", "hf-posenc")
        text = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
        raise ValueError(f"{text}. `{where} --help` lists what there is.") from error


class _Commands(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:  # the help
            return super().parse_args(ctx, args)
        with _in_our_words(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _in_our_words(ctx):
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    name="hf-posenc",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"hf-posenc {hf_posenc.__version__}")
        raise typer.Exit()


@app.callback()
def _hf_posenc(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Encoders whose positional scheme is one config value: train, evaluate, predict, inspect."""


def _one_of(*choices: str) -> Callable[[str], list[str]]:
    """Completion in the shell."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


# Not read from the table of schemes: completion can't wait for PyTorch. A test compares them.
SCHEMES = (
    *("alibi", "deberta", "fire", "fourier", "kerple", "learned", "lspe", "mlp_bias", "none", "relative_key"),
    *("relative_key_query", "rope", "sinusoidal", "t5", "tupe"),
)
_complete_scheme = _one_of(*SCHEMES)
_complete_preset = _one_of("tiny", "mini", "small", "base")


def _checkpoint(name: str) -> str:
    check_is_checkpoint(name)  # before PyTorch is imported
    return name


def _here_or_hub(parameter: typer.CallbackParam, name: str | None) -> str | None:
    if name is not None:
        check_local(f"--{parameter.name}", name)
    return name


Checkpoint = Annotated[
    str,
    typer.Argument(help="A checkpoint's folder, or its name on the Hub.", show_default=False, callback=_checkpoint),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a checkpoint on the Hub.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the checkpoint's code, for a scheme of its author's own.")
]
TextColumns = Annotated[
    str | None,
    typer.Option(help="Text column; two, with a comma, for pairs. Default: those the model was trained on, or text."),
]
TextDelimiter = Annotated[str | None, typer.Option(help="Join text columns with this; no pairs.")]
SchemeFile = Annotated[str | None, typer.Option(help="A Python file with a scheme of your own.", show_default=False)]


@app.command()
def schemes() -> None:
    """List the positional schemes: what each is, its parameters at base size, its length limit, its cost."""
    from hf_posenc.inspection import describe_schemes

    table = Table("scheme", "what it is", "parameters", "max length", "cost", title="Positional schemes")
    table.columns[2].justify = table.columns[3].justify = "right"
    table.columns[0].no_wrap = True  # names are to be copied
    table.columns[1].overflow = table.columns[4].overflow = "fold"
    for row in describe_schemes():
        length = "any" if row.max_length is None else f"{row.max_length:,}"
        table.add_row(row.name, row.summary, f"{row.parameters:,}", length, row.cost)
    console = Console()
    console.print(table)
    console.print("Parameters at base size (12 layers, D = 768, 12 heads, 512 positions).", style="dim")
    console.print(
        "model_cards/SCHEME.md in the repository says when to choose one; `hf-posenc plot SCHEME -o out.png` draws it.",
        style="dim",
    )


@app.command("inspect")
def inspect_command(checkpoint: Checkpoint, revision: Revision = None, trust_remote_code: Trust = False) -> None:
    """Show a checkpoint's scheme, size and scores, what it was trained on, for how long and from what, and versions."""
    from safetensors import SafetensorError

    from hf_posenc.inspection import inspect_checkpoint
    from hf_posenc.training.errors import UserError, one_line

    try:
        found = inspect_checkpoint(checkpoint, revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{checkpoint!r} can't be read as a PosEnc checkpoint: {one_line(error)}") from error
    share = found.position_parameters / max(found.parameters, 1)
    length = "any" if found.max_length is None else f"{found.max_length:,} tokens"
    if not found.scheme_loaded:
        length = "what the scheme's own code says: --trust-remote-code runs it"
    rows: dict[str, Any] = {
        "model": found.architecture,
        "scheme": found.position_embedding_type,
        "scheme arguments": ", ".join(f"{k}={v!r}" for k, v in found.position_embedding_kwargs.items()) or "none",
        "rope parameters": found.rope_parameters and ", ".join(f"{k}={v!r}" for k, v in found.rope_parameters.items()),
        "own code": found.own_code,
        "max length": length,
        "parameters": f"{found.parameters:,}, of them {found.position_parameters:,} positional ({share:.2%})",
        "weights": ", ".join(found.dtypes),
        "labels": ", ".join(found.labels),
        **{f"{split} scores": _words_of(scores) for split, scores in found.training.scores.items()},
        "to beat": _words_of(found.training.baselines),
        "doubts": " ".join(found.training.warnings),
        "data": found.training.data,
        "training": found.training.length,
        "made from": found.training.source,
        "hf_posenc": found.posenc_version,
        "transformers": found.transformers_version,
        "code": f"travels with it, {len(found.code_files)} files"
        if found.code_files
        else "none: it loads only where hf_posenc is installed",
        "missing code": ", ".join(found.missing_code_files),
    }
    table = Table(title=found.source, show_header=False)
    for name, value in rows.items():
        if value:
            table.add_row(name, str(value))
    Console().print(table)


def _words_of(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


@app.command()
def predict(
    checkpoint: Checkpoint,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to classify.", show_default=False)] = None,
    text_pair: Annotated[str | None, typer.Option(help="Second text of a pair; goes with one text.")] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            help="Read .txt (a text per line), .csv, .tsv, .json, .jsonl (also .gz) or .parquet; - is standard input.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Write .csv, .tsv, .jsonl (also .gz) or .parquet: all columns of the file, and the answers.",
            show_default=False,
        ),
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Between csv columns; default: found.")] = None,
    text_column_names: TextColumns = None,
    text_column_delimiter: TextDelimiter = None,
    output_format: Annotated[
        str | None,
        typer.Option("--format", help="On the screen: `table` (default) or `jsonl` (one JSON object per line)."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Texts per forward pass.")] = 32,
    threshold: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="0 TO 1", help="Several labels per text: give those with a probability above this."
        ),
    ] = 0.5,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Give the n most probable labels; default: all.")
    ] = None,
    bf16: Annotated[
        str | None,
        typer.Option(metavar="[true|false]", help="Mixed precision. Default: where the processor has bfloat16."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. Default: a GPU if there is one.")] = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
) -> None:
    """Label texts, a pair, a file or standard input: labels with probabilities, numbers, or a label for each word.

    The file's other columns are kept beside the answers; one that is called `label` becomes `input_label`. Empty texts
    are answered too, and said.
    """
    with _loading():
        import torch

        from hf_posenc.training.arguments import DataArguments
        from hf_posenc.training.data import remembered_columns
        from hf_posenc.training.errors import UserError
        from hf_posenc.training.precision import best_dtype
        from hf_posenc.training.prediction import Text, load_classifier, task_of
        from hf_posenc.training.prediction import predict as run
        from hf_posenc.training.prediction_files import check_input, check_output, read_inputs

    if bf16 not in (None, "true", "false"):
        raise UserError(f"--bf16 {bf16!r} is unknown. Give true or false.")
    if output_format not in (None, "table", "jsonl"):
        raise UserError(f"--format {output_format!r} is unknown. Choose table or jsonl.")
    if output_format is not None and output is not None:
        raise UserError(
            f"--format is of the screen. The suffix of --output {output!r} says its format; give one of them."
        )
    if bool(texts) == bool(file):
        raise UserError("Give texts to classify, or --file FILE (- for standard input), and not both.")
    if text_pair is not None and len(texts or []) != 1:
        raise UserError("--text-pair goes with exactly one text. For many pairs, give a .csv or .jsonl --file.")
    if file is not None:
        check_input(file)
    if output is not None:
        check_output(output, file)
    options = DataArguments(
        delimiter=delimiter, text_column_names=text_column_names, text_column_delimiter=text_column_delimiter
    )
    classifier = load_classifier(checkpoint, device, revision, trust_remote_code=trust_remote_code)
    known = remembered_columns(classifier.model.config)
    read = read_inputs(file, options, known, twice=output is not None) if file else None
    half = best_dtype(classifier.device) == torch.bfloat16 if bf16 is None else bf16 == "true"
    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if half and bf16 is None:
        errors.print(_IN_BF16, style="dim")
    inputs: Any = read or [Text(text, text_pair) for text in texts or []]
    predictions = run(classifier, inputs, batch_size, threshold=threshold, top_k=top_k, bf16=half)
    _give_answers(predictions, task_of(classifier.model.config), inputs, output, output_format)
    for remark in read.remarks() if read is not None else ():
        errors.print(remark)


def _give_answers(predictions: Any, task: Any, inputs: Any, output: str | None, output_format: str | None) -> None:
    """Writes answers to a file with a bar of progress, or prints them."""
    from rich.markup import escape
    from rich.progress import track

    from hf_posenc.training.model import TOKENS
    from hf_posenc.training.prediction_files import Inputs, json_line, write_answers

    errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if output is not None:
        count, names = (inputs.count, inputs.names) if isinstance(inputs, Inputs) else (len(inputs), inputs[0].columns)
        shown = track(predictions, "Labelling", count, console=errors, transient=True, disable=not errors.is_terminal)
        written = write_answers(output, shown, task, inputs, list(names))
        errors.print(f"{written:,} {'answer is' if written == 1 else 'answers are'} in {output}")
        return
    if output_format == "jsonl":
        for prediction in predictions:
            print(json_line(prediction, task), flush=True)
        return
    is_number, of_words = task.problem_type == "regression", task.problem_type == TOKENS
    heads = (
        ("text", "prediction") if is_number else ("text", "labels") if of_words else ("text", "label", "probabilities")
    )
    table = Table(*heads)
    for prediction in predictions:
        given, answer = prediction.input, prediction.answer
        shown_text = given.text if given.text_pair is None else f"{given.text} || {given.text_pair}"
        if is_number:
            numbers = answer.get("predictions") or {"": answer["prediction"]}
            table.add_row(escape(shown_text), ", ".join(f"{name} {n:.4g}".strip() for name, n in numbers.items()))
            continue
        if of_words:
            pairs = zip(answer["words"], answer["labels"], strict=True)
            table.add_row(escape(shown_text), escape("  ".join(f"{word}/{label}" for word, label in pairs)))
            continue
        label = answer["label"]
        chosen = ", ".join(label) or "(none)" if isinstance(label, list) else label
        every = ", ".join(f"{name} {share:.3f}" for name, share in answer["probabilities"].items())
        table.add_row(*map(escape, (shown_text, chosen, every)))
    Console().print(table)


class _Train(TyperCommand):
    """Takes options as transformers' scripts do: with underscores too, and `--bf16` for `--bf16 true`."""

    switches = (
        "--one-cycle",
        "--lora",
        "--compare-none",
        "--bf16",
        "--load-best-model-at-end",
        "--overwrite-output-dir",
        "--streaming",
        "--skip-missing",
        "--resume-from-checkpoint",
        "--keep-checkpoints",
    )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        written: list[str] = []
        for word, following in zip(args, [*args, "--"][1:], strict=True):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                word = name.replace("_", "-") + equals + value
            written.append(word)
            if word in self.switches and following.startswith("-"):
                written.append("true")
        return super().parse_args(ctx, written)


def _list_all_options(wanted: bool) -> None:
    if wanted:
        from hf_posenc.training import parse_arguments

        parse_arguments(["--help"], "Options of hf-posenc train and of examples/run_classification.py.")


_DATA, _MODEL, _OPTIMIZER = "Data", "Model", "Optimizer and schedule"
_KEPT, _MACHINE = "Evaluation and what is kept", "Speed and memory"
_SWITCH = "[true|false]"
_IN_BF16 = "Computing in bfloat16 mixed precision, which this machine does fastest; --bf16 false for float32."


@app.command(cls=_Train, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    context: typer.Context,
    output_dir: Annotated[
        str, typer.Option("--output-dir", "-o", help="Folder for the checkpoint.", show_default=False)
    ],
    overwrite_output_dir: Annotated[
        str | None,
        typer.Option(metavar=_SWITCH, help="Replace the run that the folder holds, when the new one has ended."),
    ] = None,
    resume_from_checkpoint: Annotated[
        str | None,
        typer.Option(metavar="[true|FOLDER]", help="Go on from the newest whole checkpoint, or from a checkpoint-N."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and order; default 42.")] = None,
    help_all: Annotated[
        bool, typer.Option("--help-all", is_eager=True, callback=_list_all_options, help="List all other options.")
    ] = False,
    train_file: Annotated[
        str | None,
        typer.Option(help="Training data: .csv, .tsv, .json, .jsonl (also .gz), .parquet.", rich_help_panel=_DATA),
    ] = None,
    validation_file: Annotated[
        str | None, typer.Option(help="Validation data; else 10 % is set aside.", rich_help_panel=_DATA)
    ] = None,
    test_file: Annotated[
        str | None, typer.Option(help="Test data, scored and labelled at the end.", rich_help_panel=_DATA)
    ] = None,
    dataset_name: Annotated[
        str | None,
        typer.Option(
            callback=_here_or_hub,
            help="A Hub data set, a folder of split files, or blimp_order, which comes along.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between csv columns; default: found.", rich_help_panel=_DATA)
    ] = None,
    text_column_names: Annotated[
        str | None, typer.Option(help="Text column; two, with a comma, for pairs.", rich_help_panel=_DATA)
    ] = None,
    label_column_name: Annotated[str | None, typer.Option(help="Label column.", rich_help_panel=_DATA)] = None,
    label_delimiter: Annotated[
        str | None, typer.Option(help="Between several labels in one cell.", rich_help_panel=_DATA)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="classification, regression, or tokens: a label for each word. Default: what the labels look like.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    skip_missing: Annotated[
        str | None,
        typer.Option(metavar=_SWITCH, help="Leave rows without label or text out.", rich_help_panel=_DATA),
    ] = None,
    max_seq_length: Annotated[
        int | None, typer.Option(help="Longer inputs are cut to this many tokens.", rich_help_panel=_DATA)
    ] = None,
    streaming: Annotated[
        str | None,
        typer.Option(
            metavar=_SWITCH,
            help="Read data while training; needs --max-steps.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option(
            callback=_here_or_hub,
            help="Start from these weights, of BERT and its kin: best for 100 to 50,000 rows.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    position_embedding_type: Annotated[
        str | None,
        typer.Option(
            autocompletion=_complete_scheme,
            help="Positional scheme: see `schemes`; default rope, or the pretrained one.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    position_embedding_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="The scheme's own arguments.", rich_help_panel=_MODEL)
    ] = None,
    scheme_file: Annotated[
        str | None, typer.Option(help="A Python file with a scheme of your own.", rich_help_panel=_MODEL)
    ] = None,
    position_augmentation: Annotated[
        str | None,
        typer.Option(
            autocompletion=_one_of("none", "shift", "random"),
            help="Positions in training: none (default), shift or random.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    config_preset: Annotated[
        str | None,
        typer.Option(
            autocompletion=_complete_preset,
            help="Size of a new encoder: tiny (default), mini, small, base.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    classifier_pooling: Annotated[
        str | None,
        typer.Option(
            autocompletion=_one_of("mean", "cls", "max"), help="mean (default), cls or max.", rich_help_panel=_MODEL
        ),
    ] = None,
    model_name_or_path: Annotated[
        str | None,
        typer.Option(callback=_here_or_hub, help="Go on from a checkpoint of ours, as it is.", rich_help_panel=_MODEL),
    ] = None,
    lora: Annotated[
        str | None,
        typer.Option(metavar=_SWITCH, help="Train low-rank changes of trained weights (PEFT).", rich_help_panel=_MODEL),
    ] = None,
    tokenizer_name: Annotated[
        str | None,
        typer.Option(
            callback=_here_or_hub, help="A trained tokenizer; else one is trained here.", rich_help_panel=_MODEL
        ),
    ] = None,
    num_train_epochs: Annotated[
        float | None,
        typer.Option(help="Passes over the training data; default by their number.", rich_help_panel=_OPTIMIZER),
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="Steps, instead of passes.", rich_help_panel=_OPTIMIZER)] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak of AdamW's; default by model size.", rich_help_panel=_OPTIMIZER)
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Try N rates, dropouts and starts first, on the validation data, a third of the steps each.",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = None,
    lr_scheduler_type: Annotated[
        str | None,
        typer.Option(
            autocompletion=_one_of("linear", "cosine", "constant", "constant_with_warmup", "polynomial"),
            help="linear (default), cosine, constant_with_warmup, ...",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = None,
    one_cycle: Annotated[
        str | None,
        typer.Option(
            metavar=_SWITCH,
            help="The one-cycle schedule instead.",
            rich_help_panel=_OPTIMIZER,
        ),
    ] = None,
    warmup_steps: Annotated[
        float | None,
        typer.Option(help="Steps to warm up; below 1, a share of all; default 0.1.", rich_help_panel=_OPTIMIZER),
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's; default 0.", rich_help_panel=_OPTIMIZER)] = None,
    max_grad_norm: Annotated[
        float | None, typer.Option(help="Gradients are clipped to this; default 1.", rich_help_panel=_OPTIMIZER)
    ] = None,
    class_weights: Annotated[
        str | None,
        typer.Option(
            help='balanced, or JSON {"rare": 5, "common": 1}: how much a label counts.', rich_help_panel=_OPTIMIZER
        ),
    ] = None,
    compare_none: Annotated[
        str | None,
        typer.Option(metavar=_SWITCH, help="Train without positions too: is that as good?", rich_help_panel=_KEPT),
    ] = None,
    eval_strategy: Annotated[
        str | None,
        typer.Option(
            autocompletion=_one_of("epoch", "steps", "no"),
            help="When to evaluate and save: epoch (default), steps, no.",
            rich_help_panel=_KEPT,
        ),
    ] = None,
    early_stopping_patience: Annotated[
        int | None, typer.Option(help="Stop after this many evaluations without a better one.", rich_help_panel=_KEPT)
    ] = None,
    metric_for_best_model: Annotated[
        str | None, typer.Option(help="What is better: macro_f1 (default), accuracy, loss, ...", rich_help_panel=_KEPT)
    ] = None,
    load_best_model_at_end: Annotated[
        str | None,
        typer.Option(
            metavar=_SWITCH,
            help="Keep the best weights (default), or the last.",
            rich_help_panel=_KEPT,
        ),
    ] = None,
    keep_checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar=_SWITCH,
            help="Keep what a run resumes from when it has ended, too (default: false).",
            rich_help_panel=_KEPT,
        ),
    ] = None,
    per_device_train_batch_size: Annotated[
        int | None, typer.Option(help="Batch size; default 32.", rich_help_panel=_MACHINE)
    ] = None,
    gradient_accumulation_steps: Annotated[
        int | None, typer.Option(help="Batches per step; default 1.", rich_help_panel=_MACHINE)
    ] = None,
    bf16: Annotated[
        str | None,
        typer.Option(
            metavar="BOOL",
            help="Mixed precision. Default: where the processor has bfloat16.",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
) -> None:
    """Train a text classifier or regressor and write a checkpoint that strangers can load.

    From pretrained weights, which is best for 100 to 50,000 rows:
    `hf-posenc train -o runs/mine --train-file mine.csv --pretrained sentence-transformers/all-MiniLM-L6-v2`.
    Without `--pretrained` a small encoder learns from your rows alone.

    Here are the options that are asked for most. All others of `examples/run_classification.py`, and so every one of
    transformers' TrainingArguments, are accepted too: `--help-all` lists them. On two GPUs:
    `accelerate launch --multi_gpu --num_processes 2 -m hf_posenc.cli train` and the same options.
    """
    with _loading():
        import torch

        from hf_posenc.conversion import fine_tune
        from hf_posenc.training import parse_arguments
        from hf_posenc.training.precision import best_dtype

    arguments = ["--do_train", "true", "--do_eval", "true", "--score_test", "true"]
    for name, value in context.params.items():
        if value is not None and name != "help_all":
            arguments += [f"--{name}", str(value)]
    if test_file:  # labelled, even if it has no labels to be scored by
        arguments += ["--do_predict", "true"]
    # What --use_cpu, --fp16 and the like ask for stands.
    decided = any(
        word.startswith(("--fp16", "--use-cpu", "--use_cpu", "--no-bf16", "--no_bf16")) for word in context.args
    )
    if bf16 is None and not decided and best_dtype() == torch.bfloat16:
        arguments += ["--bf16", "true"]
        Console(stderr=True).print(_IN_BF16, style="dim", highlight=False)
    data, model, training = parse_arguments([*arguments, *context.args])
    result = fine_tune(data, model, training)
    if training.process_index == 0:
        _show_metrics(result.metrics)
        Console().print(f"Checkpoint, results and README are in {result.output_dir}", highlight=False)


@app.command()
def evaluate(
    checkpoint: Checkpoint,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Labelled data: .csv, .json, .jsonl, .parquet.")
    ] = None,
    dataset_name: Annotated[
        str | None, typer.Option(help="A Hub data set, a folder of split files, or blimp_order.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of --dataset-name.")] = "test",
    delimiter: Annotated[str | None, typer.Option(help="Between csv columns; default: found.")] = None,
    text_column_names: TextColumns = None,
    label_column_name: Annotated[str | None, typer.Option(help="Label column. Default: as trained.")] = None,
    label_delimiter: Annotated[str | None, typer.Option(help="What separates several labels in a csv cell.")] = None,
    text_column_delimiter: TextDelimiter = None,
    skip_missing: Annotated[bool, typer.Option("--skip-missing", help="Leave rows without label or text out.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per forward pass.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    trust_remote_code: Trust = False,
) -> None:
    """Score a checkpoint on labelled data, a file or a split of a data set: loss and the metrics of its task."""
    import json
    import tempfile

    with _loading():
        from hf_posenc.conversion import fine_tune
        from hf_posenc.training import UserError, make_arguments

    if (file is None) == (dataset_name is None):
        raise UserError("Give the data: --file FILE, or --dataset-name NAME, and not both.")
    # What is no validation split is a test, also in what is said on the way.
    role = "validation" if file is None and split in ("validation", "valid", "val", "dev") else "test"
    source = {"test_file": file} if file else {"dataset_name": dataset_name, f"{role}_split_name": split}
    kind = {"do_eval": True} if role == "validation" else {"do_predict": True, "score_test": True}
    columns = {
        "delimiter": delimiter,
        "text_column_names": text_column_names,
        "label_column_name": label_column_name,
        "label_delimiter": label_delimiter,
        "text_column_delimiter": text_column_delimiter,
    }
    # Whatever the Trainer prints goes to standard error: standard output holds the result alone.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        result = fine_tune(
            *make_arguments(
                model_name_or_path=checkpoint,
                trust_remote_code=trust_remote_code,
                output_dir=folder,
                skip_missing=skip_missing,
                per_device_eval_batch_size=batch_size,
                disable_tqdm=as_json,
                **source,
                **kind,
                **{name: value for name, value in columns.items() if value is not None},
            ),
            console=Console(stderr=True),
        )
    left_out = ("runtime", "_per_second", "preparation_time", "epoch")
    prefix = "eval_" if role == "validation" else "test_"
    metrics = {
        name.removeprefix(prefix): float(value) for name, value in result.metrics.items() if not name.endswith(left_out)
    }
    examples = next(iter(result.summary.examples.values()))
    if as_json:
        print(
            json.dumps(
                {"data": file or dataset_name, "split": role if file else split, "examples": examples, **metrics}
            )
        )
    else:
        where = f"{os.path.basename(file)}, as test data" if file else f"{dataset_name}, split {split!r}"
        Console().print(f"{where}: {examples:,} examples", highlight=False, markup=False)
        _show_metrics(metrics)


@app.command()
def quickstart(
    output_dir: Annotated[str, typer.Option("--output-dir", "-o", help="Folder for the checkpoints.")] = "quickstart",
    schemes: Annotated[
        str | None, typer.Option(help="Schemes to compare, with commas; default: all five basic ones.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and order.")] = 0,
    overwrite_output_dir: Annotated[
        bool, typer.Option("--overwrite-output-dir", help="Replace each checkpoint there when its new one is whole.")
    ] = False,
) -> None:
    """See word order being learned: a tiny encoder per scheme on real sentences, in about six minutes."""
    with _loading():
        from hf_posenc.training.quick_start import SCHEMES
        from hf_posenc.training.quick_start import quickstart as run

    chosen = tuple(name.strip() for name in schemes.split(",")) if schemes else SCHEMES
    run(output_dir, chosen, seed, overwrite_output_dir=overwrite_output_dir)


@app.command()
def check(
    scheme: Annotated[
        str,
        typer.Argument(autocompletion=_complete_scheme, help="A positional scheme: see `schemes`.", show_default=False),
    ],
    kwargs: Annotated[str | None, typer.Option(help="The scheme's own arguments, as a JSON object.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Run this check alone; may be given several times.")] = None,
    scheme_file: SchemeFile = None,
) -> None:
    """Put a scheme through the conformance checks: padding, packing, gradients, saving, export, remote code, ..."""
    import json

    from hf_posenc.conformance import check_position
    from hf_posenc.scheme_file import register_scheme_file
    from hf_posenc.training.errors import UserError

    try:
        own = json.loads(kwargs or "{}")
    except json.JSONDecodeError as error:
        raise UserError(f"--kwargs {kwargs!r} is no JSON: {error}. Write it as '{{\"name\": 1}}'.") from error
    if not isinstance(own, dict):
        raise UserError(f"--kwargs {kwargs!r} is no JSON object. Write it as '{{\"name\": 1}}'.")
    if scheme_file is not None:
        register_scheme_file(scheme_file, scheme)
    report = check_position(scheme, kwargs=own, checks=only or None)
    Console().print(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def plot(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SCHEME|CHECKPOINT...",
            help="Schemes, by name, or checkpoints; several are compared on one sheet.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Picture to write: .png, .svg or .pdf.", show_default=False)
    ],
    max_positions: Annotated[int | None, typer.Option(help="Positions shown; default 128.")] = None,
    layer: Annotated[int, typer.Option(help="Layer, from 0, of what differs by layer.")] = 0,
    config_preset: Annotated[
        str, typer.Option(autocompletion=_complete_preset, help="Size, for a scheme's name: tiny, mini, small, base.")
    ] = "base",
    position_embedding_kwargs: Annotated[
        str | None, typer.Option(help="Arguments of a scheme given by name, as JSON.")
    ] = None,
    rope_parameters: Annotated[str | None, typer.Option(help="RoPE's parameters, as JSON.")] = None,
    revision: Revision = None,
    scheme_file: SchemeFile = None,
    trust_remote_code: Trust = False,
) -> None:
    """Draw what a scheme does to embeddings, queries and keys, or logits: with initial or a checkpoint's weights."""
    import json

    from hf_posenc.model.configuration_posenc import PosEncConfig
    from hf_posenc.model.modeling_posenc import PosEncModel
    from hf_posenc.panels import is_scheme
    from hf_posenc.plots import check_picture_path, plot_comparison, plot_position, save_figure
    from hf_posenc.scheme_file import register_scheme_file
    from hf_posenc.training.errors import UserError, one_line

    check_picture_path(output)
    if scheme_file is not None:
        register_scheme_file(scheme_file, "+".join(sources))
    fields = {}
    given = {"position_embedding_kwargs": position_embedding_kwargs, "rope_parameters": rope_parameters}
    for name, text in given.items():
        if text is not None:
            option = f"--{name.replace('_', '-')}"
            try:
                fields[name] = json.loads(text)
            except json.JSONDecodeError as error:
                raise UserError(f'{option} {text!r} is no JSON ({error}). Write it as {{"name": value}}.') from error
            if len(sources) > 1 or not is_scheme(sources[0]):
                raise UserError(f"{option} goes with one scheme's name. A checkpoint has its own.")
    read = [
        PosEncConfig.from_preset(config_preset, position_embedding_type=source, **fields)
        if is_scheme(source)
        else PosEncModel.from_pretrained(source, revision=revision or "main", trust_remote_code=True)
        if trust_remote_code
        else source
        for source in sources
    ]
    options: dict[str, Any] = {"max_positions": max_positions, "layer": layer, "revision": revision}
    try:
        figure = plot_position(read[0], **options) if len(read) == 1 else plot_comparison(read, **options)
    except (ImportError, OSError) as error:
        raise UserError(one_line(error)) from error
    save_figure(figure, output)
    Console().print(f"The picture is in {output}", highlight=False, markup=False)


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA, RoFormer or PosEnc: folder or Hub name.",
            show_default=False,
        ),
    ],
    out: Annotated[str, typer.Argument(help="Folder to write, whole or not at all.", show_default=False)],
    position_embedding_type: Annotated[
        str | None,
        typer.Option(
            autocompletion=_complete_scheme,
            help="Positional scheme: see `schemes`; default: the source's own, exactly.",
        ),
    ] = None,
    position_embedding_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="The scheme's own arguments.")
    ] = None,
    rope_parameters: Annotated[str | None, typer.Option(metavar="JSON", help="RoPE's parameters.")] = None,
    max_position_embeddings: Annotated[
        int | None, typer.Option(min=1, help="How long inputs may be; default: as in the source.")
    ] = None,
    extension: Annotated[
        str | None,
        typer.Option(help="How: tile (default), interpolate, hierarchical for tables; linear, dynamic, yarn for RoPE."),
    ] = None,
    heal: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Unlabelled text to heal a swap with: .txt, .csv, .jsonl, ...")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Time for healing; default: 10.", show_default=False)] = None,
    bf16: Annotated[bool, typer.Option(help="Heal in mixed precision: about twice as fast where it is.")] = False,
    eval_text: Annotated[
        str | None, typer.Option(help="Text to measure on; default: a part of --heal, or sentences that come along.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Head of the result, such as text-classification; default: the source's.")
    ] = None,
    num_labels: Annotated[int | None, typer.Option(min=1, help="Labels of a new classifier.")] = None,
    allow_pickle: Annotated[bool, typer.Option(help="Read a .bin file where there is no safetensors file.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the model in OUT.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn at random.")] = 0,
    revision: Revision = None,
) -> None:
    """Make a PosEnc checkpoint of pretrained BERT-family weights, with any positional scheme, and measure it.

    Without a scheme the result computes what the source does. With another one it doesn't: the report says how far it
    is from the original, and `--heal` brings it nearer. A healing that was stopped goes on where it was: give the
    same command again.
    """
    from hf_posenc.conversion import convert as run
    from hf_posenc.conversion.heal import read_training_texts

    _, report = run(
        source,
        out,
        position_embedding_type=position_embedding_type,
        position_embedding_kwargs=_json_option("--position-embedding-kwargs", position_embedding_kwargs),
        rope_parameters=_json_option("--rope-parameters", rope_parameters),
        max_position_embeddings=max_position_embeddings,
        extension=extension,
        heal=heal,
        minutes=minutes,
        healing={"bf16": True} if bf16 else None,
        eval_texts=None if eval_text is None else read_training_texts(eval_text),
        task=task,
        num_labels=num_labels,
        allow_pickle=allow_pickle,
        overwrite=overwrite,
        seed=seed,
        revision=revision,
    )
    Console().print(report)
    Console().print(f"The checkpoint and conversion.json are in {out}", highlight=False, markup=False)


@app.command("export-bert")
def export_bert(
    source: Checkpoint,
    out: Annotated[str, typer.Argument(help="Folder to write, whole or not at all.", show_default=False)],
    model_type: Annotated[
        str | None,
        typer.Option(help="bert, roberta, xlm-roberta, camembert, distilbert or electra; default: what can hold it."),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the model in OUT.")] = False,
    revision: Revision = None,
) -> None:
    """Write a `learned` checkpoint with BERT's body as transformers' own model, and measure that it is the same."""
    from hf_posenc.conversion import export_bert as run

    model, found = run(source, out, model_type=model_type, overwrite=overwrite, revision=revision)
    Console().print(
        f"{type(model).__name__} is in {out}: hidden states differ by at most {found.hidden_max:.2g} on "
        f"{found.sequences} texts ({found.texts}).",
        highlight=False,
        markup=False,
    )


def _json_option(option: str, text: str | None) -> dict[str, Any] | None:
    import json

    from hf_posenc.training.errors import UserError

    try:
        value = None if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f'{option} {text!r} is no JSON ({error}). Write it as {{"name": value}}.') from error
    if value is not None and not isinstance(value, dict):
        raise UserError(f'{option} {text!r} is no JSON object. Write it as {{"name": value}}.')
    return value


@app.command()
def benchmark(
    contenders: Annotated[
        str,
        typer.Option(
            help="Schemes and peers (bert, roformer, modernbert, nomic_bert), the reference first; NAME:eager, "
            "NAME:flex_attention, PEER:equal_dropout, SCHEME:frozen_words."
        ),
    ] = "bert,bert:equal_dropout,none,rope,alibi,t5",
    sizes: Annotated[str, typer.Option(help="tiny, mini (256x4), minilm (384x6), base (768x12).")] = "minilm",
    works: Annotated[str, typer.Option(help="sst2 (32 sentences of real lengths) or ROWSxTOKENS.")] = "sst2,8x128",
    modes: Annotated[
        str, typer.Option(help="inference, training (forward, backward), step (and optimizer).")
    ] = "inference,training",
    dtype: Annotated[str, typer.Option(help="Of all but the first: float32, bfloat16, float16.")] = "float32",
    reference_dtype: Annotated[str, typer.Option(help="Of the first: float32, bfloat16, float16.")] = "float32",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 8,
    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads; default: PyTorch's.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: a GPU if there is one.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time goes, too.")] = False,
    startup: Annotated[bool, typer.Option("--startup", help="Measure imports and loading instead.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Results: .json, and a .md table and .png plot beside it.")
    ] = None,
) -> None:
    """Measure speed and memory of schemes against transformers' encoders, in turns on the same batches."""
    import torch

    from hf_posenc.benchmark import (
        markdown_table,
        measure_startup,
        run_benchmark,
        startup_table,
        write_results,
    )
    from hf_posenc.training.errors import UserError

    if threads is not None:
        torch.set_num_threads(threads)
    if output is not None and not output.endswith(".json"):
        raise UserError(f"--output {output!r} doesn't end in .json. The table and the plot go beside it.")
    lists = [[part.strip() for part in text.split(",")] for text in (contenders, sizes, works, modes)]
    errors = Console(stderr=True)
    if startup:
        found = measure_startup(lists[1][0], rounds)
        print(startup_table(found))
    else:
        found = run_benchmark(
            lists[0],
            sizes=lists[1],
            works=lists[2],
            modes=lists[3],
            dtype=dtype,
            reference_dtype=reference_dtype,
            rounds=rounds,
            device=device,
            profile=profile,
            report=lambda line: errors.print(line, style="dim", highlight=False, markup=False),
            save=lambda found: write_results(found, output) if output else None,
        )
        print(markdown_table(found))
    for path in write_results(found, output) if output else ():
        errors.print(f"Wrote {path}", highlight=False, markup=False)


@app.command()
def compare(
    output_dir: Annotated[str, typer.Option("--output-dir", "-o", help="Folder for the results.", show_default=False)],
    plan: Annotated[
        str | None, typer.Option(help="A YAML file that says all of the below, or the name of a plan that comes along.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The plan `quick`: a minute or two.")] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A folder or Hub name, `probes` or `halves`; may be given more than once.", show_default=False
        ),
    ] = None,
    masked_lm: Annotated[
        list[str] | None, typer.Option(help="Text for a masked language model, as --data.", show_default=False)
    ] = None,
    schemes: Annotated[str | None, typer.Option(help="Schemes with commas, or all.")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds, or which: 0,1,2. Default 5.")] = None,
    scheme_file: Annotated[
        list[str] | None,
        typer.Option(help="A Python file with a scheme of your own, for --schemes; may be given more than once."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="What the others are compared with; default: the folder's, or the first.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(autocompletion=_complete_preset, help="Size: tiny (default), mini, small, base.")
    ] = None,
    pretrained: Annotated[
        str | None, typer.Option(help="Start from a checkpoint, converted to each scheme; or from converted/{scheme}.")
    ] = None,
    train_length: Annotated[int | None, typer.Option(help="Tokens of a training input, at most; default 64.")] = None,
    test_lengths: Annotated[str | None, typer.Option(help="Lengths of tests; default 64,128,256,512.")] = None,
    train_examples: Annotated[int | None, typer.Option(help="Training examples per task.")] = None,
    test_examples: Annotated[int | None, typer.Option(help="Test examples per part and length.")] = None,
    options: Annotated[
        str | None, typer.Option(metavar="JSON", help="Options of `train`, such as num_train_epochs.")
    ] = None,
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Choose a learning rate for each scheme: 3 trials each, on a seed and data that aren't reported.",
        ),
    ] = False,
    shard: Annotated[str, typer.Option(help="Make part i of n of the runs: 2/4. Merge by copying runs/.")] = "1/1",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and make none.")] = False,
) -> None:
    """Compare schemes: the same encoder, data, seeds and budget; only positions change.

    What is done is skipped, so that the same command goes on after Ctrl-C, and other seeds or schemes are added to a
    folder. Several processes may work on one folder: each run is made by one of them. `hf-posenc report` writes the
    report, also while runs are missing.
    """
    from hf_posenc.comparison import execute, read_plan
    from hf_posenc.comparison.plan import SEARCH_FACTORS
    from hf_posenc.training.arguments import parse_json_option
    from hf_posenc.training.errors import UserError

    if sum((plan is not None, quick)) > 1:
        raise UserError("--plan and --quick are both given. Give one of them.")
    tasks: list[Any] = [*(data or []), *({"masked_lm": name} for name in masked_lm or [])]
    chosen = read_plan(
        "quick" if quick else plan or {},
        tasks=tasks or None,
        schemes=None if schemes is None else _words(schemes),
        scheme_files=scheme_file or None,
        seeds=None if seeds is None else _numbers("seeds", seeds) if "," in seeds else _numbers("seeds", seeds)[0],
        baseline=baseline,
        preset=preset,
        pretrained=pretrained,
        train_length=train_length,
        test_lengths=None if test_lengths is None else _numbers("test-lengths", test_lengths),
        train_examples=train_examples,
        test_examples=test_examples,
        options=parse_json_option("options", options),
        search=SEARCH_FACTORS if search else None,
    )
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit()):
        raise UserError(f"--shard {shard!r} is no part. Write i/n, such as 2/4.")
    if dry_run:
        for run in chosen.work(int(part), int(parts)):
            print(run.name)
        return
    made = execute(chosen, output_dir, shard=(int(part), int(parts)))
    others = f"{len(made.elsewhere)} are another process's, " if made.elsewhere else ""
    Console().print(
        f"{len(made.done)} runs made, {len(made.skipped)} were there, {others}{len(made.failed)} failed. "
        f"Report: hf-posenc report {output_dir}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if made.failed:
        Console().print("The same command tries those that failed again.")
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(option: str, text: str) -> list[int]:
    from hf_posenc.training.errors import UserError

    words = _words(text)
    if not words or not all(word.isdigit() for word in words):
        raise UserError(f"--{option} {text!r} are no whole numbers. Write 64 or 64,128.")
    return [int(word) for word in words]


@app.command()
def report(
    results: Annotated[str, typer.Argument(help="A folder of `compare`.", show_default=False)],
    output_dir: Annotated[
        str | None, typer.Option("--output-dir", "-o", help="Folder for the report; default: the results' own.")
    ] = None,
) -> None:
    """Write the report of a comparison: report.md, and report.html, one page that holds everything."""
    from hf_posenc.comparison.report import write_report
    from hf_posenc.training.errors import UserError, one_line

    try:
        markdown, page = write_report(results, output_dir)
    except ImportError as error:
        raise UserError(one_line(error)) from error
    Console().print(f"The report is in {markdown} and {page}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def publish(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint's folder.", show_default=False)],
    repo_id: Annotated[str, typer.Option(help="Where to: owner/name.", show_default=False)],
    private: Annotated[
        bool | None,
        typer.Option(
            "--private/--public", help="Who sees a repository that is made now; default: the owner's setting."
        ),
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request instead.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch; made if it doesn't exist.")] = None,
    commit_message: Annotated[str, typer.Option(help="Title of the commit.")] = "Upload a PosEnc model",
    trust_remote_code: Trust = False,
) -> None:
    """Publish a checkpoint on the Hub: weights, code, tokenizer, card and checksums; then load it back and compare.

    The token is that of `hf auth login` or the environment variable HF_TOKEN. What isn't part of the model stays here.
    """
    from hf_posenc.hub import publish as send

    done = send(
        checkpoint,
        repo_id,
        private=private,
        create_pr=create_pr,
        revision=revision,
        commit_message=commit_message,
        trust_remote_code=trust_remote_code,
    )
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if done.left_out:
        console.print(f"Not sent: {', '.join(done.left_out)}")
    console.print(
        "Published and verified:" if done.changed else "Nothing has changed since it was published:", done.url
    )


def _show_metrics(metrics: dict[str, float]) -> None:
    table = Table("metric", "value")
    table.columns[1].justify = "right"
    for name, value in metrics.items():
        if not name.endswith(("_per_second", "_runtime", "total_flos")):
            table.add_row(name, f"{value:.4f}")
    Console().print(table)


class _Notes(logging.Handler):
    """Prints what the package warns of, wrapped to the terminal, in the words of the options that were typed."""

    def emit(self, record: logging.LogRecord) -> None:
        text = as_typed(record.getMessage())
        if sys.stderr.isatty():
            text = textwrap.fill(text, shutil.get_terminal_size().columns - 1)
        print(text, file=sys.stderr)


_NOTES = _Notes()


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """A sign of life while PyTorch is imported, which takes seconds."""
    console = Console(stderr=True)
    with console.status("Loading PyTorch and transformers") if console.is_interactive else contextlib.nullcontext():
        yield


def main() -> None:
    """Entry point: runs a command; whatever goes wrong ends in one line and an exit code (see `explain`)."""
    _ctrl_c.end()
    speak_as_typed(sys.argv[1:], with_dashes=True)
    logging.getLogger("hf_posenc").addHandler(_NOTES)
    try:
        app(prog_name="hf-posenc")
    except (Exception, KeyboardInterrupt) as caught:
        error = (caught.__cause__ or caught) if isinstance(caught, _Ended) else caught
        if isinstance(error, BrokenPipeError):  # the reader, such as head, has all that it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        from rich.markup import escape

        line, code = explain(error)
        kind, _, text = line.partition(":")
        if line:
            errors = Console(stderr=True, highlight=False)
            errors.soft_wrap = not errors.is_terminal
            errors.print(f"[red]{kind.capitalize()}:[/red]{escape(text)}")
        sys.exit(code)


if __name__ == "__main__":
    main()
