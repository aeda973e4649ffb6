"""Converts a pretrained checkpoint and fine-tunes it in one call."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from ..conversion.convert import convert
from ..conversion.output import REPORT_NAME
from ..conversion.report import ConversionReport
from ..data.options import DataArguments
from ..errors import UserError, one_line
from ..options import refuse_given
from ..quiet import without_bars
from ..training import TrainingResult
from ..training.arguments import ModelArguments, RunArguments
from ..training.output_folder import check_run_folder
from ..training.progress import main_console
from ..training.run import shared_folder
from .classification import train_classifier
from .model import prepare_scheme
from .start import read_data


@without_bars()
def fine_tune(
    data: DataArguments,
    model: ModelArguments,
    training: RunArguments,
    *,
    splits: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> TrainingResult:
    """`train_classifier`, from `model.pretrained` where that is set.

    The pretrained checkpoint is converted as `convert` does it, to `model.position_embedding_type` or with its own
    scheme, and `conversion.json` in the output folder says what the conversion kept.

    Raises:
        UserError: something in the options or the data is wrong, or the checkpoint can't be converted.
        Interrupted: Ctrl-C; a checkpoint was saved.
    """
    console = main_console(training, console)
    check_run_folder(training)  # before anything that takes long
    prepare_scheme(model)
    splits = read_data(data, model, training) if splits is None else splits
    with converted(model, training, console) as started:
        result = train_classifier(data, started, training, splits=splits, console=console)
        if started is not model and training.process_index == 0:
            shutil.copyfile(Path(str(started.model_name_or_path)) / REPORT_NAME, result.output_dir / REPORT_NAME)
    return result


@contextlib.contextmanager
def converted(arguments: ModelArguments, training: RunArguments, console: Console) -> Iterator[ModelArguments]:
    """Converts `pretrained` into a temporary folder and yields options that name it; prints what was kept."""
    if arguments.pretrained is None:
        yield arguments
        return
    why = f"can't be with --pretrained {arguments.pretrained!r}, which says already what to start from"
    refuse_given(arguments, ("model_name_or_path", "config_name", "config_preset"), why)
    with shared_folder(training, ".converted-") as folder:
        out = folder / "converted"
        with training.main_process_first(desc="converting"):
            if training.process_index == 0:
                console.print(_convert(arguments, out, training.seed).sentence(), highlight=False, markup=False)
        yield replace(arguments, model_name_or_path=str(out), model_revision="main", max_position_embeddings=None)


def _convert(arguments: ModelArguments, out: Path, seed: int) -> ConversionReport:
    """Converts `arguments.pretrained` to the folder `out`."""
    try:
        _, report = convert(
            str(arguments.pretrained),
            out,
            position_embedding_type=arguments.position_embedding_type,
            position_embedding_kwargs=cast(Any, arguments.position_embedding_kwargs),
            rope_parameters=cast(Any, arguments.rope_parameters),
            max_position_embeddings=arguments.max_position_embeddings,
            task="feature-extraction",
            revision=arguments.model_revision if arguments.model_revision != "main" else None,
            seed=seed,
        )
    except UserError as error:
        raise UserError(f"--pretrained {arguments.pretrained!r}: {one_line(error)}") from error
    return report
