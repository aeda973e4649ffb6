"""What the runs of a scheme start from: an encoder of the plan's size, or a checkpoint converted to the scheme."""

import json
from pathlib import Path

import torch

from hf_posenc.conversion import convert
from hf_posenc.conversion.output import REPORT_NAME
from hf_posenc.errors import UserError, one_line
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.positions import make_position

from .plan import Plan, PlannedRun, Task


def _config(plan: Plan, task: Task, scheme: str) -> PosEncConfig:
    """A config of the plan's size with the scheme, as far as positions go.

    Raises:
        UserError: there is no such scheme or argument.
    """
    try:
        config = PosEncConfig.from_preset(
            plan.preset,
            position_embedding_type=scheme,
            position_embedding_kwargs=plan.scheme_arguments.get(scheme),
            max_position_embeddings=plan.table_length or plan.train_length_of(task),
        )
        _position_limit(config)  # it builds the scheme
        return config
    except (ValueError, TypeError) as error:
        raise UserError(one_line(error)) from error
    except Exception as error:  # in the code of a scheme of the user's own
        raise UserError(f"{scheme!r} can't be built: {type(error).__name__}: {one_line(error)}") from error


def check_scheme(plan: Plan, scheme: str) -> None:
    """Refuses a scheme that can't be built or started as the plan says.

    Raises:
        UserError: the scheme, its arguments, the checkpoint or the number of positions can't be.
    """
    if plan.pretrained is not None:
        if set("{}") & set(plan.pretrained.replace("{scheme}", "")):
            raise UserError(
                f"pretrained {plan.pretrained!r} is no path in which {{scheme}} stands for the scheme's name: give one "
                "such as converted/{scheme}, or one checkpoint for all."
            )
        if plan.preset != "tiny":
            raise UserError(f"pretrained {plan.pretrained!r} has its own size. Leave preset {plan.preset!r} out.")
        if "{scheme}" not in plan.pretrained:  # there is none yet, see `convert_checkpoints`
            return
        limits = _check_checkpoint(plan, scheme, Path(plan.pretrained.format(scheme=scheme)))
    else:
        configs = {task.name: _config(plan, task, scheme) for task in plan.tasks}
        limits = {name: _position_limit(config) for name, config in configs.items()}
        try:
            next(iter(configs.values())).code_files()  # checkpoints hold it
        except ValueError as error:
            raise UserError(one_line(error)) from error
    _check_limits(plan, scheme, limits)


def hidden_size(plan: Plan, run: PlannedRun, data_folder: Path) -> int:
    """How wide the encoder of a run is."""
    if plan.pretrained is not None:
        return PosEncConfig.from_pretrained(plan.checkpoint(run.scheme, data_folder)).hidden_size
    fields = plan.options_of(run.task)["set"]
    return int(fields.get("hidden_size", PosEncConfig.from_preset(plan.preset).hidden_size))


def convert_checkpoints(plan: Plan, data_folder: Path) -> None:
    """Converts the plan's one checkpoint to each scheme; does nothing where the plan names a checkpoint per scheme.

    Raises:
        UserError: it can't be converted to a scheme, or is too short.
    """
    if plan.pretrained is None or "{scheme}" in plan.pretrained:
        return
    for scheme in plan.schemes:
        folder = plan.checkpoint(scheme, data_folder)
        if not (folder / "config.json").is_file():
            try:
                convert(
                    plan.pretrained,
                    folder,
                    position_embedding_type=scheme,
                    position_embedding_kwargs=plan.scheme_arguments.get(scheme),
                    measure=False,
                    overwrite=True,  # what a killed process left
                )
            except ValueError as error:
                raise UserError(f"{plan.pretrained!r} can't be converted to {scheme!r}: {one_line(error)}") from error
        _check_limits(plan, scheme, _check_checkpoint(plan, scheme, folder))
    made = data_folder / "converted"
    if len({source_of(folder) for folder in made.iterdir()} - {None}) > 1:  # None: a killed process left no report
        raise UserError(
            f"{plan.pretrained!r} has changed since the first schemes in {str(made)!r} were converted from it. "
            "Restore it and delete the schemes converted since, or name a new folder for the results."
        )


def _check_checkpoint(plan: Plan, scheme: str, folder: Path) -> dict[str, int | None]:
    """Refuses a checkpoint of another scheme. Returns its number of positions, by task."""
    if not (folder / "config.json").is_file():
        raise UserError(f"There is no checkpoint in {str(folder)!r}, from which {scheme!r} would start.")
    config = PosEncConfig.from_pretrained(folder)
    if config.position_embedding_type != scheme:
        raise UserError(f"{str(folder)!r} has the scheme {config.position_embedding_type!r}, not {scheme!r}.")
    if any(map(config.has_bundled_code, scheme.split("+"))):
        raise UserError(
            f"{scheme!r} in {str(folder)!r} isn't a scheme of hf_posenc. Give the file that defines it: --scheme-file, "
            "or scheme_files: [...] in the plan."
        )
    return {task.name: _position_limit(config) for task in plan.tasks}


def source_of(checkpoint: Path) -> str | None:
    """SHA-256 of the weights that a checkpoint was converted from; None if `hf-posenc convert` didn't make it."""
    report = checkpoint / REPORT_NAME
    if not report.is_file():
        return None
    return json.loads(report.read_text(encoding="utf-8")).get("source_sha256")


def _check_limits(plan: Plan, scheme: str, limits: dict[str, int | None]) -> None:
    for task in plan.tasks:
        limit, train = limits[task.name], plan.train_length_of(task)
        if limit is not None and limit < train:
            raise UserError(
                f"{scheme!r} has {limit} positions, the task {task.name!r} trains at {train} tokens. Make table_length "
                f"{train} or more, or leave the scheme out."
            )


def _position_limit(config: PosEncConfig) -> int | None:
    """How many positions the scheme of a config has; None: any number."""
    with torch.device("meta"):
        return make_position(config).max_length
