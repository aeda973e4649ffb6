"""What the runs of a scheme start from: an encoder of the plan's size, or a checkpoint converted to the scheme."""

from pathlib import Path

import torch

from hf_posenc.conversion import convert
from hf_posenc.errors import UserError, one_line
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.positions import make_position

from .plan import Plan, PlannedRun


def check_scheme(plan: Plan, scheme: str) -> None:
    """Refuses a scheme that can't be built or started as the plan says.

    Raises:
        UserError: the scheme, its arguments, the checkpoint or the number of positions can't be.
    """
    if plan.pretrained is None:
        _check_limit(plan, scheme, _config(plan, scheme))
        return
    if set("{}") & set(plan.pretrained.replace("{scheme}", "")):
        raise UserError(
            f"pretrained {plan.pretrained!r} is no path in which {{scheme}} stands for the scheme's name: give one "
            "such as converted/{scheme}, or one checkpoint for all."
        )
    if plan.size != "tiny":
        raise UserError(f"pretrained {plan.pretrained!r} has its own size. Leave size {plan.size!r} out.")
    if "{scheme}" in plan.pretrained:  # else there is none yet, see `convert_checkpoints`
        _check_checkpoint(plan, scheme, Path(plan.pretrained.format(scheme=scheme)))


def _config(plan: Plan, scheme: str) -> PosEncConfig:
    """A config of the plan's size with the scheme, as far as positions go."""
    positions = plan.options_of(plan.tasks[0])["set"]["max_position_embeddings"]
    try:
        config = PosEncConfig.from_preset(
            plan.size,
            position_embedding_type=scheme,
            position_embedding_kwargs=plan.scheme_kwargs.get(scheme),
            max_position_embeddings=positions,
        )
        config.code_files()  # checkpoints hold it
        with torch.device("meta"):
            make_position(config)
        return config
    except (ValueError, TypeError) as error:
        raise UserError(one_line(error)) from error
    except Exception as error:  # in the code of a scheme of the user's own
        raise UserError(f"{scheme!r} can't be built: {type(error).__name__}: {one_line(error)}") from error


def hidden_size(plan: Plan, run: PlannedRun, data_folder: Path) -> int:
    """How wide the encoder of a run is."""
    if plan.pretrained is not None:
        return PosEncConfig.from_pretrained(plan.checkpoint(run.scheme, data_folder)).hidden_size
    fields = plan.options_of(run.task)["set"]
    return int(fields.get("hidden_size", PosEncConfig.from_preset(plan.size).hidden_size))


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
                    position_embedding_kwargs=plan.scheme_kwargs.get(scheme),
                    measure=False,
                    overwrite=True,  # what a killed process left
                )
            except ValueError as error:
                raise UserError(f"{plan.pretrained!r} can't be converted to {scheme!r}: {one_line(error)}") from error
        _check_checkpoint(plan, scheme, folder)


def _check_checkpoint(plan: Plan, scheme: str, folder: Path) -> None:
    """Refuses a checkpoint of another scheme, or with too few positions."""
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
    _check_limit(plan, scheme, config)


def _check_limit(plan: Plan, scheme: str, config: PosEncConfig) -> None:
    with torch.device("meta"):
        limit = make_position(config).max_length
    if limit is not None and limit < plan.train_length:
        raise UserError(
            f"{scheme!r} has {limit} positions, the plan trains at {plan.train_length} tokens. Give options: "
            f"{{set: {{max_position_embeddings: {plan.train_length}}}}} or more, or leave the scheme out."
        )
