"""The tokenizer and the model that a training starts from: new, converted, or one of our checkpoints."""

from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.loading import CLASSIFIER, knowledge, load_model, longest_input
from ..checkpoints.opening import Checkpoint, open_checkpoint
from ..checkpoints.tokenizers import check_ids, largest_id, load_tokenizer, open_tokenizer
from ..conversion.convert import convert
from ..conversion.loading import source_config
from ..conversion.swap import given_arguments
from ..data.labels import Labels
from ..data.preparing import Known, PreparedData, texts_of
from ..data.tokenizer import DEFAULT_MAX_LENGTH, train_tokenizer
from ..errors import UserError, check_local, did_you_mean, spell, user_errors
from ..files import last_name
from ..model.configuration_posenc import PosEncConfig
from ..options import BOOLEAN, COUNT, Options, check_range, refuse_given
from ..schemes.names import require_scheme
from ..schemes.scheme_file import register_scheme
from ..schemes.support import code_files
from ..training.trainer import add_lora
from ..training.trainer_fields import INSTALLED, trainer_fields

_CONFIG = {*PosEncConfig.__dataclass_fields__} - {*PreTrainedConfig.__dataclass_fields__}
_CONFIG -= {"position_embedding_type", "position_embedding_kwargs", "problem_type", "label_mean", "label_scale"}
_CONFIG -= {"vocab_size", "pad_token_id", "posenc_version"}
"""Fields of the configuration that `set` may name: not those that an option, the tokenizer or the labels set."""
_BY_OPTION = {"position_embedding_type": "scheme", "position_embedding_kwargs": "scheme_kwargs"}
_OF_TOKENIZERS = {"vocab_size": COUNT, "do_lower_case": BOOLEAN}
"""What `set` may name of a tokenizer that is trained."""
_OF_A_CONVERSION = ("rope_parameters", "max_position_embeddings")
"""Fields of the configuration that change positions: a checkpoint is converted for them."""
_OF_TRAINED = {
    *_OF_A_CONVERSION,
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "classifier_pooling"),
    *("classifier_hidden_act", "classifier_norm", "position_augmentation", "position_augmentation_length"),
    "unpad_inputs",
}
"""Fields of the configuration that may differ from those that weights were trained with."""


@dataclass(frozen=True)
class Beginning:
    """Where a training begins, before any data is read."""

    config: Any
    """Of the checkpoint, or of a new encoder."""
    checkpoint: Checkpoint | None
    """None: a new encoder."""

    @property
    def known(self) -> Known:
        """Knowledge that the checkpoint has of its data."""
        return knowledge(self.config, self.checkpoint)


def check_start(options: Options) -> Beginning:
    """Checks scheme, checkpoint and `set` before any data is read.

    Raises:
        UserError: there is no such scheme, checkpoint or field, or the options contradict each other.
    """
    of_the_trainer = trainer_fields(options).keys()
    _check_assigned(options)
    if options.scheme_file is None or options.pretrained is None:
        _check_scheme(options)
    if options.tokenizer is not None:
        check_local("tokenizer", options.tokenizer)
    if options.pretrained is None:
        return Beginning(_new_config(options), None)
    source = spell("pretrained", options.pretrained)
    refuse_given(options, ("size",), f"is for new encoders, and {source} has its own")
    if (fixed := next((n for n in options.assigned if n not in of_the_trainer | _OF_TRAINED), None)) is not None:
        raise UserError(
            f": {source} was trained with its own. Leave it out; of the configuration may be set "
            f"{', '.join(sorted(_OF_TRAINED))}.",
            parameter=f"set.{fixed}",
        )
    checkpoint = open_checkpoint(
        options.pretrained, revision=options.revision, trust_remote_code=options.trust_remote_code
    )
    if options.scheme_file is not None:
        is_ours = checkpoint.raw.get("model_type") == PosEncConfig.model_type
        _check_scheme(options, str(checkpoint.raw.get("position_embedding_type")) if is_ours else None)
    return Beginning(source_config(checkpoint), checkpoint)


def _check_scheme(options: Options, trained: str | None = None) -> None:
    """Registers a file, one of whose schemes must be the new model's or that of the checkpoint, `trained`."""
    if options.scheme_file is not None:
        schemes = "+".join(filter(None, (options.scheme, trained)))
        registered = register_scheme(options.scheme_file, schemes or None)
        if not {*registered} & {*schemes.split("+")}:
            unused = f"defines {', '.join(registered)}, which isn't used. Name it: {spell('scheme', registered[0])}."
            raise UserError(unused, parameter="scheme_file", value=options.scheme_file)
    if options.scheme is not None or options.pretrained is None:
        require_scheme(options.scheme or PosEncConfig.position_embedding_type, cast(Any, options.scheme_kwargs))


def _check_assigned(options: Options) -> None:
    """Refuses in `set` what an option gives, what isn't known, and a tokenizer's value out of its range."""
    if name := next((name for name in options.assigned if name in _BY_OPTION), None):
        raise UserError(f"can't be set: {spell(_BY_OPTION[name])} gives it. Leave it out.", parameter=f"set.{name}")
    known = INSTALLED.keys() | _CONFIG | _OF_TOKENIZERS.keys()
    if name := next((name for name in options.assigned if name not in known), None):
        near = did_you_mean(name, known)
        unknown = f": neither TrainingArguments nor PosEncConfig has such a field. {near}".rstrip()
        raise UserError(unknown, parameter=f"set.{name}")
    for name in options.assigned.keys() & _OF_TOKENIZERS.keys():
        check_range(f"set.{name}", options.assigned[name], _OF_TOKENIZERS[name])


def _new_config(options: Options) -> PosEncConfig:
    """The configuration of a new encoder; refuses options of checkpoints."""
    if options.lora:
        needed = f"trains updates of trained weights. Name a checkpoint with {spell('pretrained')}."
        raise UserError(needed, parameter="lora", value=True)
    of_checkpoints = ("revision", "trust_remote_code", "allow_other_tokens")
    refuse_given(options, of_checkpoints, f"is for {spell('pretrained')}")
    values = {"hidden_dropout_prob": 0.0, **_config_fields(options)}
    if options.scheme is not None:
        values["position_embedding_type"] = options.scheme
    with user_errors():
        config = PosEncConfig.from_size(
            options.size or "tiny", position_embedding_kwargs=options.scheme_kwargs, **values
        )
        code_files(config)  # refuse now what couldn't be saved at the end
    return config


def start(
    options: Options, prepared: PreparedData, beginning: Beginning
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel, list[str]]:
    """The tokenizer and the model, and what was decided, a sentence each.

    Args:
        options: of the run.
        prepared: the data.
        beginning: what `check_start` returned.

    Raises:
        UserError: an option isn't accepted, or the checkpoint can't be read, converted, or doesn't fit.
    """
    if beginning.checkpoint is None:
        return _new(options, prepared, beginning.config)
    knows_labels = _knows_labels(beginning, prepared.labels)
    if _needs_conversion(options, beginning.config):
        return _convert(options, prepared, beginning.checkpoint, knows_labels)
    return _load(options, prepared, beginning.checkpoint, beginning.config, keeps_head=knows_labels)


def _needs_conversion(options: Options, config: Any) -> bool:
    """True where the checkpoint isn't ours, or other positions are asked for than it has."""
    wanted = {
        "position_embedding_type": options.scheme,
        "position_embedding_kwargs": options.scheme_kwargs,
        **{name: options.assigned.get(name) for name in _OF_A_CONVERSION},
    }
    if config.model_type != PosEncConfig.model_type:
        return True
    for name, value in wanted.items():  # a config holds all arguments, defaults too
        if isinstance(value, dict):
            wanted[name] = given_arguments(config.position_embedding_type, set(), getattr(config, name) or {}, value)
    return any(value is not None and value != getattr(config, name) for name, value in wanted.items())


def _convert(
    options: Options, prepared: PreparedData, checkpoint: Checkpoint, knows_labels: bool
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel, list[str]]:
    """A checkpoint of another family, or under other positions, as a classifier of the data's labels."""
    source = str(options.pretrained)
    converted = convert(
        source,
        scheme=options.scheme,
        scheme_kwargs=cast(Any, options.scheme_kwargs),
        head=CLASSIFIER if knows_labels else "feature-extraction",
        revision=options.revision,
        allow_other_tokens=options.allow_other_tokens,
        measure=False,
        seed=options.seed,
        **{name: value for name, value in options.assigned.items() if name in _OF_A_CONVERSION},
    )
    tokenizer = _tokenizer_for(options, converted.tokenizer)
    config: Any = converted.model.config
    with user_errors():
        code_files(config)  # as of a new one
    config.dtype = None  # trained in float32, whatever the source is stored in
    keeps_head = knows_labels and not converted.report.keys.new
    notes = _set_fields(options, prepared.labels, config, checkpoint, keeps_head=keeps_head)
    model = AutoModelForSequenceClassification.from_config(config)
    part = model if knows_labels else model.base_model
    part.load_state_dict(converted.model.state_dict())
    model.name_or_path = config.name_or_path = source
    if options.lora:
        add_lora(model)
    report = converted.report
    return tokenizer, model, [*filter(None, [report.sentence(), report.tokenizer, *notes])]


def _load(
    options: Options, prepared: PreparedData, checkpoint: Checkpoint, config: Any, *, keeps_head: bool
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel, list[str]]:
    """A checkpoint of ours as a classifier of the data's labels."""
    source = str(options.pretrained)
    tokenizer = load_tokenizer(checkpoint, config)
    notes = []
    if tokenizer is not None:
        notes = check_ids(tokenizer, checkpoint.folder, source, allowed=options.allow_other_tokens, is_saved=True)
    tokenizer = _tokenizer_for(options, tokenizer)
    notes += _set_fields(options, prepared.labels, config, checkpoint, keeps_head=keeps_head)
    model = load_model(checkpoint, config, new_head=not keeps_head)
    if not keeps_head:  # the weights in its file are of another task
        _renew_head(model)
    if options.lora:
        add_lora(model)
    return tokenizer, model, notes


def _knows_labels(beginning: Beginning, labels: Labels) -> bool:
    """True where a checkpoint is a classifier of these labels, or a regressor for one number."""
    known = beginning.known
    if known.problem_type != labels.problem_type:
        return False
    return (
        beginning.config.num_labels == 1 if labels.problem_type == "regression" else known.label_names == labels.names
    )


def _tokenizer_for(options: Options, tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint, or the one that an option names; refuses one with other tokens."""
    source = str(options.pretrained)
    if tokenizer is None:
        raise UserError(f"{source!r} has no tokenizer. Put the one that it was trained with into its folder.")
    if options.tokenizer is None:
        return tokenizer
    given = open_tokenizer(options.tokenizer)
    if given.get_vocab() != tokenizer.get_vocab():
        raise UserError(
            f"has other tokens than {source!r} was trained with, so that words would meet the weights of others. "
            "Leave it out.",
            parameter="tokenizer",
            value=options.tokenizer,
        )
    return given


def _set_fields(
    options: Options, labels: Labels, config: Any, checkpoint: Checkpoint, *, keeps_head: bool
) -> list[str]:
    """Sets the labels and what `set` names in the configuration of trained weights; a sentence on each change.

    A head that is kept answers in the units that it learned.
    """
    fields = {**_head(labels), **_config_fields(options)}
    if keeps_head:
        fields = {name: value for name, value in fields.items() if not name.startswith("label_")}
    notes = []
    dropout = config.attention_probs_dropout_prob
    if dropout and "attention_probs_dropout_prob" not in fields:
        keeps = spell("set.attention_probs_dropout_prob", dropout)
        notes.append(f"Attention dropout is 0 instead of {dropout:g}: {keeps} keeps it.")
        fields["attention_probs_dropout_prob"] = 0.0
    with user_errors():
        config.update(fields)
    if checkpoint.task == CLASSIFIER:
        which, state = ("these", "trained further") if keeps_head else ("other", "learned anew")
        source = last_name(str(options.pretrained))
        notes.append(f"{source} was trained for {which} labels: its classifier is {state}.")
    return notes


def _renew_head(model: PreTrainedModel) -> None:
    """Draws the weights of the head anew."""
    for name, part in type(model)(model.config).named_children():
        if name != model.base_model_prefix:
            setattr(model, name, part)


def _head(labels: Labels) -> dict[str, Any]:
    """The fields of the configuration that say what the labels are."""
    names: dict[str, Any] = {"num_labels": labels.num_labels}
    if labels.names:
        names = {"id2label": dict(enumerate(labels.names)), "label2id": labels.numbers()}
    return {"problem_type": labels.problem_type, **names, "label_mean": labels.mean, "label_scale": labels.std}


def _config_fields(options: Options) -> dict[str, Any]:
    """Fields of the configuration that `set` names."""
    return {name: value for name, value in options.assigned.items() if name in _CONFIG}


def _new(
    options: Options, prepared: PreparedData, config: Any
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel, list[str]]:
    """A new encoder, and a tokenizer that is named or trained on the training texts; what that one ignores."""
    settings = {name: value for name, value in options.assigned.items() if name in _OF_TOKENIZERS}
    if options.tokenizer is not None and settings:
        raise UserError("is for a tokenizer that is trained. Leave it out.", parameter=f"set.{next(iter(settings))}")
    notes = []
    if options.tokenizer is not None:
        tokenizer = open_tokenizer(options.tokenizer)
    else:
        length = options.max_length or options.assigned.get("max_position_embeddings") or DEFAULT_MAX_LENGTH
        texts = chain.from_iterable(texts_of(prepared.splits["train"]))
        tokenizer = train_tokenizer(texts, model_max_length=length, **settings)
        if tokenizer.backend_tokenizer.normalizer.lowercase:
            notes = [f"Case and accents are ignored: {spell('set.do_lower_case', False)} keeps them."]
    fields = {**_head(prepared.labels), "vocab_size": largest_id(tokenizer) + 1, "pad_token_id": tokenizer.pad_token_id}
    if "max_position_embeddings" not in options.assigned:
        fields["max_position_embeddings"] = options.max_length or longest_input(tokenizer)
    with user_errors():
        config.update(fields)
        return tokenizer, AutoModelForSequenceClassification.from_config(config), notes
