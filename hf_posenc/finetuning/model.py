"""The model of a run: a new PosEnc encoder, or a trained checkpoint of any family."""

from dataclasses import fields
from typing import Any, cast

from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.labels import Labels
from ..data.tokenizer import DEFAULT_MAX_LENGTH
from ..errors import UserError, about_options, dashed
from ..model.hints import scheme_names
from ..model.package_config import PosEncConfig, scheme_class
from ..model.position_base import PositionScheme
from ..options import refuse_given
from ..schemes.scheme_file import register_scheme_file
from ..training.arguments import ModelArguments
from ..training.lora import add_lora
from .loading import CLASSIFIER, has_head, load_model, read_config
from .options import parse_overrides

logger = logging.get_logger(__name__)

NEW_CLASSIFIER: dict[str, Any] = {"hidden_dropout_prob": 0.0}
"""Fields of a new classifier's configuration that differ from `PosEncConfig.from_preset`'s."""
_FOR_NEW_ENCODERS = ("config_name", "config_preset", "max_position_embeddings")
_POSITIONS = ("position_embedding_type", "position_embedding_kwargs", "rope_parameters")
_OPTIONS = frozenset(item.name for item in fields(ModelArguments))
# A larger limit of a tokenizer means none.
_NO_LIMIT = 10**6


def prepare_scheme(arguments: ModelArguments) -> None:
    """Registers `scheme_file`, and checks the scheme's name before any data is read.

    Raises:
        UserError: the file can't be registered, or there is no such scheme.
    """
    if arguments.scheme_file is not None:
        register_scheme_file(arguments.scheme_file, arguments.position_embedding_type)
    if arguments.model_name_or_path is None and arguments.position_embedding_type is not None:
        with about_options(_OPTIONS):
            for name in scheme_names(arguments.position_embedding_type):
                scheme_class(name)


def load_config(arguments: ModelArguments) -> Any:
    """The configuration of the checkpoint that the options name, or None for a new encoder.

    Raises:
        UserError: it can't be read, there is no such scheme, or options for new encoders are given beside it.
    """
    prepare_scheme(arguments)
    if arguments.model_name_or_path is None:
        if arguments.pretrained is not None:
            raise UserError("pretrained is converted by hf_posenc.finetuning.fine_tune. Call that instead.")
        return None
    refuse_given(arguments, _FOR_NEW_ENCODERS, "is for new encoders, and --model-name-or-path names a trained one")
    config = read_config(arguments.model_name_or_path, arguments)
    _check_scheme(config, arguments)
    return config


def _check_scheme(config: Any, arguments: ModelArguments) -> None:
    """Refuses a scheme that isn't the checkpoint's, which other models would ignore silently."""
    for name in _POSITIONS:
        value, trained = getattr(arguments, name), getattr(config, name, None)
        if value is None:
            continue
        if config.model_type != PosEncConfig.model_type:
            model = f"{arguments.model_name_or_path!r}, a {config.model_type} model,"
            raise UserError(f"{dashed(name)} {value!r}: {model} has its own positions. Leave it out.")
        wanted = {**(trained or {}), **value} if isinstance(value, dict) else value
        if (wanted or None) != (trained or None):
            raise UserError(
                f"{dashed(name)} {value!r}: {arguments.model_name_or_path!r} was trained with {trained!r}. Leave it "
                "out, or train a new encoder."
            )


def make_model(
    arguments: ModelArguments,
    config: Any,
    tokenizer: PreTrainedTokenizerBase,
    labels: Labels,
    max_length: int | None = None,
) -> PreTrainedModel:
    """Builds a new classifier, or loads a checkpoint as one.

    Args:
        arguments: the options.
        config: of the checkpoint. None: a new encoder.
        tokenizer: of the run.
        labels: of the data.
        max_length: tokens of the longest input. None: as many as the tokenizer gives.

    Raises:
        UserError: an option isn't accepted, or the checkpoint can't be read or doesn't fit.
    """
    if arguments.freeze_word_embeddings and config is None:
        raise UserError(
            "freeze_word_embeddings=True would keep random word embeddings. Leave it out, or give --model-name-or-path."
        )
    task = _task(labels) | _units(labels, config, str(arguments.pretrained or arguments.model_name_or_path))
    if config is None:
        if arguments.lora:
            raise UserError(
                "--lora changes trained weights, and a new encoder has none. Give --pretrained, or leave --lora out."
            )
        return _new_encoder(arguments, max_length, tokenizer, task)
    with about_options(_OPTIONS):
        for name, value in {**task, **_body_options(arguments, config)}.items():
            setattr(config, name, value)
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"The tokenizer has {len(tokenizer)} tokens, {arguments.model_name_or_path!r} knows {config.vocab_size}. "
            "Use the model's own: leave --tokenizer-name out."
        )
    model = load_model(arguments, config)
    if arguments.freeze_word_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    if arguments.lora:
        add_lora(model, arguments.lora_rank)
    return model


def _task(labels: Labels) -> dict[str, Any]:
    """The fields of the configuration that say what the labels are."""
    if labels.names:
        names: dict[str, Any] = {"id2label": dict(enumerate(labels.names)), "label2id": labels.numbers()}
    else:
        names = {"num_labels": labels.num_labels}
    return {"problem_type": labels.problem_type, **names}


def _units(labels: Labels, config: Any, source: str) -> dict[str, float]:
    """The fields that make a new head answer in the units of the training rows; a trained regression keeps its own.

    Args:
        labels: of the data.
        config: of the checkpoint to start from. None: a new encoder.
        source: what the user called the checkpoint.
    """
    units = {"label_mean": labels.mean, "label_scale": labels.std}
    if config is None:
        return units
    is_regression = config.problem_type == labels.problem_type == "regression" and config.num_labels == 1
    is_trained = is_regression and has_head(config, CLASSIFIER)
    if config.model_type == PosEncConfig.model_type and not is_trained:
        return units
    mean, std = getattr(config, "label_mean", 0.0), getattr(config, "label_scale", 1.0)
    is_near = abs(labels.mean - mean) <= 5 * std and std / 5 <= labels.std <= 5 * std
    if units != {"label_mean": 0.0, "label_scale": 1.0} and not is_near:
        keeps = "is a regression already and keeps its own units" if is_trained else f"is a {config.model_type} model"
        logger.warning(
            f"Targets aren't standardised: they have mean {labels.mean:.6g} and standard deviation {labels.std:.6g}, "
            f"and {source!r} {keeps} (mean {mean:.6g}, standard deviation {std:.6g}), so it learns slowly. "
            "--pretrained begins with its encoder and a new head in the units of the data."
        )
    return {}


def _new_encoder(
    arguments: ModelArguments,
    max_length: int | None,
    tokenizer: PreTrainedTokenizerBase,
    task: dict[str, Any],
) -> PreTrainedModel:
    length = arguments.max_position_embeddings or max_length or _longest_input(tokenizer)
    values: dict[str, Any] = {
        **task,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "max_position_embeddings": length,
    }
    values |= {name: value for name in _POSITIONS if (value := getattr(arguments, name)) is not None}
    if arguments.config_name is None:
        values |= NEW_CLASSIFIER
    values |= _body_options(arguments, None)
    with about_options(_OPTIONS):
        if arguments.config_name is not None:
            if arguments.config_preset is not None:
                raise UserError("--config-name and --config-preset are both given. Give one of them.")
            named = read_config(arguments.config_name, arguments)
            if named.model_type != PosEncConfig.model_type:
                raise UserError(
                    f"--config-name {arguments.config_name!r} is a {named.model_type} model, no PosEnc one."
                )
            config = PosEncConfig.from_dict(named.to_dict(), **values)
        else:
            config = PosEncConfig.from_preset(arguments.config_preset or "tiny", **values)
        config.code_files()  # refuse now what couldn't be saved at the end
        return AutoModelForSequenceClassification.from_config(config)


def _body_options(arguments: ModelArguments, config: Any) -> dict[str, Any]:
    """Fields of the configuration that the options set, for a new encoder or a PosEnc checkpoint."""
    own = {"model_type", "id2label", "label2id", "num_labels", "problem_type", "vocab_size", "auto_map"}
    own |= {"label_mean", "label_scale"}
    accepted = [
        name
        for name, item in PosEncConfig.__dataclass_fields__.items()
        if name not in own and item.type is not None and name not in PreTrainedConfig.__dataclass_fields__
    ]
    options = parse_overrides(arguments.config_overrides, accepted)
    for name in ("classifier_pooling", "hidden_dropout_prob", "position_augmentation"):
        if getattr(arguments, name) is not None:
            options[name] = getattr(arguments, name)
    if options and config is not None and config.model_type != PosEncConfig.model_type:
        name = dashed(next(iter(options)))
        raise UserError(f"{name} is for PosEnc encoders, not for a {config.model_type} model. Leave it out.")
    return options


def _longest_input(tokenizer: PreTrainedTokenizerBase) -> int:
    return tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else DEFAULT_MAX_LENGTH


def input_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None) -> int:
    """The number of tokens to truncate inputs to; also set in the tokenizer.

    Args:
        model: whose positions may have a limit.
        tokenizer: which may have one, too.
        max_length: what was asked for.

    Raises:
        UserError: it is past the end of a table of positions, or leaves no room for text.
    """
    limit, longest = position_limit(model), _longest_input(tokenizer)
    length = min(longest, limit or longest) if max_length is None else max_length
    if length < 3:
        raise UserError(f"--max-seq-length {length} leaves no room for text. Give at least 3 tokens.")
    if limit is not None and length > limit:
        kind = getattr(model.config, "position_embedding_type", None) or model.config.model_type
        raise UserError(
            f"--max-seq-length {length} is too long: {kind!r} has {limit} positions. Give at most {limit}, for a new "
            f"encoder a longer table (--max-position-embeddings {length}), or a scheme without a table, such as rope."
        )
    tokenizer.model_max_length = length
    return length


def position_limit(model: PreTrainedModel) -> int | None:
    """How many positions a model has, or None if it takes any number."""
    if model.config.model_type == PosEncConfig.model_type:
        return cast(PositionScheme, model.base_model.position).max_length
    tables = (("embeddings", "position_embeddings"), ("encoder", "embed_positions"))  # RoFormer's holds sines
    kept = (getattr(getattr(model.base_model, part, None), name, None) for part, name in tables)
    table = next((table for table in kept if table is not None), None)
    if table is None:
        return None
    # RoBERTa-family models start counting after the padding token.
    padding = getattr(table, "padding_idx", None)
    return table.num_embeddings - (0 if padding is None else padding + 1)
