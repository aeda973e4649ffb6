"""What can be known to be wrong before PyTorch is imported, which takes seconds. Nothing here imports it."""

from pathlib import Path
from typing import Any

from ..data.options import DataArguments
from ..errors import UserError, check_local, dashed
from ..options import declarations
from ..quiet import without_warnings
from ..schemes.names import check_scheme_name

_MOST_ROWS = 50_000
"""More rows are prepared once, when PyTorch is there: twice would take longer than its import."""


def check_run(data: DataArguments, model: Any, training: Any) -> dict[str, Any] | None:
    """Checks the options of a training (see `read_options`): output folder, names and files.

    Returns:
        The splits that were read, see `check_data`.

    Raises:
        UserError: the output folder, a name or a file is wrong.
    """
    from ..training.output_folder import check_run_folder

    check_run_folder(training)
    for name, about in declarations(model).items():
        if about.is_source and (value := getattr(model, name)) is not None:
            check_local(dashed(name), value)
    if model.scheme_file is not None:
        if not Path(model.scheme_file).is_file():
            raise UserError(f"--scheme-file {model.scheme_file!r} is no file. Give the Python file with your scheme.")
    elif model.position_embedding_type is not None and model.model_name_or_path is None:
        check_scheme_name(model.position_embedding_type)
    splits = check_data(data)
    if splits is not None and training.do_train and model.model_name_or_path is None:
        _check_rows(splits, data, training)
    return splits


def _check_rows(splits: dict[str, Any], data: DataArguments, training: Any) -> None:
    """Finds columns and labels, so that what is wrong with them shows; what is said of them comes later."""
    from ..data.prepared import Use
    from ..data.preparing import prepare

    if sum(map(len, splits.values())) > _MOST_ROWS:
        return
    with without_warnings():
        prepare(splits, data, Use(True, training.do_eval, training.do_predict, training.score_test))


def check_data(data: DataArguments) -> dict[str, Any] | None:
    """Reads files, so that what is wrong with them shows.

    Returns:
        The splits, as `read_splits` gives them; None for a data set of the Hub, which isn't asked for.

    Raises:
        UserError: a file is absent, or can't be read as the options say.
    """
    from ..data.splits import read_splits

    if data.dataset_name is not None:
        check_local("--dataset-name", data.dataset_name)
    if data.dataset_name is None or Path(data.dataset_name).exists():
        return read_splits(data)
    return None
