"""`convert`: makes a PosEnc checkpoint, with any positional scheme, from a pretrained one of the BERT family."""

import contextlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokenizer import check_tokens
from ..errors import UserError
from .families import FAMILIES
from .fields import not_carried
from .fitting import base_of
from .heal import Healing, read_training_texts, set_aside
from .heal import heal as run_healing
from .loading import Loaded, load
from .measure import OWN_TEXTS, Agreement, compare, encode, own_texts, random_rows, special_tokens, verify
from .output import check_free, load_tokenizer, other_files, write_model
from .report import ConversionReport
from .sentence_modules import carry_activation, read_modules
from .swap import swap, target_config
from .tables import EXTENSIONS

_EXACT = 1e-5
"""The largest error of a conversion that keeps the scheme, on the models that were measured."""


def convert(
    source: str | Path,
    out: str | Path | None = None,
    *,
    position_embedding_type: str | None = None,
    position_embedding_kwargs: dict[str, Any] | None = None,
    rope_parameters: dict[str, Any] | None = None,
    max_position_embeddings: int | None = None,
    extension: str | None = None,
    task: str | None = None,
    num_labels: int | None = None,
    heal: str | Path | Sequence[str] | None = None,
    max_steps: int | None = None,
    healing: dict[str, Any] | None = None,
    eval_texts: Sequence[str] | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_other_tokens: bool = False,
    overwrite: bool = False,
    measure: bool = True,
    seed: int = 0,
) -> tuple[PreTrainedModel, ConversionReport]:
    """Makes a PosEnc model of a pretrained checkpoint, and measures how well it agrees with it.

    Without a scheme the model keeps the source's own (`learned` for BERT): hidden states and logits at real tokens are
    equal to 1e-5, and the report holds the measured difference. With another scheme the weights are kept, and the new
    scheme is fitted to the old one as far as possible (see `swap`). The result isn't a drop-in replacement: the report
    gives its distance to the original, before and after healing.

    Args:
        source: a folder, or a name on the Hub: BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA, RoFormer, MPNet,
            transformers' jina_embeddings_v3, nomic_bert, gte and modernbert, or ours.
        out: the folder to write, with code, tokenizer, a sentence-transformer's modules and `conversion.json`; whole or
            not at all. None: writes nothing.
        position_embedding_type: the scheme. None: the source's own.
        position_embedding_kwargs: its arguments. None: those that suit a conversion.
        rope_parameters: of RoPE. Thetas and shares that aren't given stay as they were trained.
        max_position_embeddings: how long inputs may be. None: as long as the source's.
        extension: how a table of positions grows: `tile` (repeated: short texts keep their outputs) or
            `interpolate` (stretched). See `tables.extended_table`.
        task: the task of the result, one of `TASKS`. None: the source's. A head that the source lacks is new.
        num_labels: of a new classifier.
        heal: unlabelled text (a file, or texts) to heal a swapped model with: see `heal`.
        max_steps: steps of healing. None: 2,000.
        healing: further settings of `Healing`, by name.
        eval_texts: texts to measure on. None: those that healing sets aside, or sentences of the package.
        revision: branch, tag or commit on the Hub.
        allow_pickle: read weights from a .bin file, if there are no others.
        allow_other_tokens: take a tokenizer that gives other ids than the source's `tokenizer.json`.
        overwrite: replace the model in `out`.
        measure: measure agreement. False saves time and a second model's memory.
        seed: of everything random.

    Returns:
        The model in evaluation mode, and a `ConversionReport`.

    Raises:
        UserError: the source can't be read or isn't supported, a key isn't accounted for, the scheme or an argument
            doesn't exist, `max_steps` or `healing` is given without `heal`, or `out` is taken.
    """
    source = str(source)
    settings = _check(max_position_embeddings, eval_texts, heal, max_steps, healing, seed)
    if out is not None:
        check_free(out, overwrite, source)
    loaded = load(source, task=task, num_labels=num_labels, revision=revision, allow_pickle=allow_pickle, seed=seed)
    model = original = loaded.model
    tokenizer = load_tokenizer(loaded.source.folder, source)
    wanted = (position_embedding_type, position_embedding_kwargs, rope_parameters, max_position_embeddings, extension)
    config, changed = target_config(original, *wanted)
    if settings is not None:
        _check_healing(source, tokenizer, config, changed)
    modules, kept = read_modules(loaded.source.folder, source, max_position_embeddings, loaded.task)
    report = _begin_report(loaded, config, tokenizer, kept, allow_other_tokens)
    texts = _Texts(heal, eval_texts, tokenizer, (original.config, config), loaded.task)
    if measure:
        _measure_exactness(report, loaded, texts)
    loaded.original = None  # its memory is free again
    if changed:
        model, report.carried = swap(original, config, tokenizer=tokenizer, extension=extension, seed=seed)
        report.before = texts.agreement(model, original) if measure else None
    if settings is not None:
        _heal(report, model, original, texts, settings)
    _finish(report, loaded, model, tokenizer, max_position_embeddings)
    if out is not None:
        write_model(out, model, tokenizer, modules, report)
    return model, report


def _check(
    max_position_embeddings: int | None,
    eval_texts: Sequence[str] | None,
    heal: Any,
    max_steps: int | None,
    healing: dict[str, Any] | None,
    seed: int,
) -> Healing | None:
    """Refuses impossible arguments of `convert` before anything is loaded; returns the settings of healing."""
    if max_position_embeddings is not None and max_position_embeddings < 1:
        raise UserError(
            f"max_position_embeddings={max_position_embeddings!r} is out of range. Give at least 1, or None."
        )
    if isinstance(eval_texts, str) or (eval_texts is not None and not len(eval_texts)):
        raise UserError(f"eval_texts={eval_texts!r} holds no texts. Give a list of at least one, or None.")
    steps = {} if max_steps is None else {"max_steps": max_steps}
    given = steps | ({"healing": healing} if healing else {})
    if heal is None and given:
        useless = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise UserError(f"{useless} has no effect without text to heal with. Give that as heal, or leave it out.")
    accepted = sorted({field.name for field in fields(Healing)} - {"max_steps", "seed"})
    for name in sorted(set(healing or {}) - set(accepted)):
        raise UserError(f"healing has no {name!r}. It takes {', '.join(accepted)}.")
    return None if heal is None else Healing(**{**(healing or {}), **steps, "seed": seed})


def _finish(
    report: ConversionReport,
    loaded: Loaded,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    max_position_embeddings: int | None,
) -> None:
    """Gives model and tokenizer what they have of the source, and the report what they lack."""
    model.eval().to(loaded.source.dtype)  # type: ignore[arg-type]
    if loaded.task == "text-classification" and not loaded.keys.new:
        carry_activation(loaded.source.raw, model.config)
    if loaded.model_type in FAMILIES:
        report.notes += not_carried(FAMILIES[loaded.model_type], model.config, loaded.source.raw)
    report.notes += other_files(loaded.source.folder)
    if tokenizer is not None:
        # The length that was asked for; else the tokenizer's, up to the end of a table.
        end = base_of(model).position.max_length or loaded.model.config.max_position_embeddings
        tokenizer.model_max_length = max_position_embeddings or min(tokenizer.model_max_length, end)


def _check_healing(source: str, tokenizer: PreTrainedTokenizerBase | None, config: Any, changed: bool) -> None:
    if tokenizer is None:
        raise UserError(f"{source!r} has no tokenizer, so text can't heal it. Put its tokenizer into the folder.")
    if not changed:
        raise UserError(
            f"heal has no effect: the scheme stays {config.position_embedding_type!r} and the model computes what the "
            "source does. Leave it out, or name another scheme."
        )


def _begin_report(
    loaded: Loaded, config: Any, tokenizer: PreTrainedTokenizerBase | None, kept: list[str], allow_other_tokens: bool
) -> ConversionReport:
    """A report of what was read; the tokenizer's ids are checked for it."""
    source = loaded.source.name
    said = ["The source has none."]
    if tokenizer is not None:
        said = check_tokens(tokenizer, str(loaded.source.folder), allowed=allow_other_tokens)
    return ConversionReport(
        source=Path(source).resolve().name if Path(source).exists() else source,  # a path means nothing elsewhere
        family=loaded.model_type,
        task=loaded.task,
        from_scheme=loaded.model.config.position_embedding_type,
        to_scheme=config.position_embedding_type,
        max_position_embeddings=config.max_position_embeddings,
        keys=loaded.keys,
        source_sha256=loaded.source.fingerprint(),
        tokenizer=" ".join(said),
        notes=loaded.notes + kept,
    )


def _measure_exactness(report: ConversionReport, loaded: Loaded, texts: "_Texts") -> None:
    """Measures how far the model, with the source's own scheme, is from transformers' model."""
    report.exact = verify(loaded, texts.held_out[:64], texts.name)
    if report.exact is None and loaded.model_type != "posenc":
        report.notes.append("How exact it is can't be measured: transformers 5 has no such model to compare with.")
    if report.exact is not None and not report.exact.hidden_max <= _EXACT * 10:
        report.notes.append(
            f"As converted it isn't exact on these texts: hidden states differ from transformers' own by up to "
            f"{report.exact.hidden_max:.2g}, where {_EXACT:g} was expected. Do texts hold the padding token?"
        )


def _heal(
    report: ConversionReport,
    model: PreTrainedModel,
    original: PreTrainedModel,
    texts: "_Texts",
    settings: Healing,
) -> None:
    """Heals the model in place; keeps the weights from before if healing made it worse."""
    as_swapped = {name: value.clone() for name, value in model.state_dict().items()} if report.before else {}
    assert texts.tokenizer is not None
    report.healing = run_healing(model, original, texts.training, tokenizer=texts.tokenizer, healing=settings)
    read = report.healing["longest"]
    is_extended = any(line.get("how") in EXTENSIONS for line in report.carried)
    if is_extended and model.config.max_position_embeddings > read:
        report.notes.append(
            f"Healing read at most {read} tokens: the table's rows from {read} on are as the extension made them. "
            "Give longer texts, and healing={'max_length': ...}."
        )
    if report.before is None:  # nothing is measured
        return
    with contextlib.suppress(UserError):  # numbers that are none are farther than any
        report.after = texts.agreement(model, original)
    if report.after is None or report.after.hidden_mse > report.before.hidden_mse:  # nearly exact, or too few steps
        model.load_state_dict(as_swapped)
        report.notes.append("Healing took it farther from the original: the weights from before it are kept.")


class _Texts:
    """The texts of a conversion: those to heal with, and others to measure on."""

    def __init__(
        self,
        heal: str | Path | Sequence[str] | None,
        held_out: Sequence[str] | None,
        tokenizer: PreTrainedTokenizerBase | None,
        configs: tuple[Any, Any],
        task: str,
    ) -> None:
        self.tokenizer, self.task = tokenizer, task
        self.training: list[str] = []
        self.name = OWN_TEXTS if held_out is None else "eval_texts"
        chosen = None if held_out is None else list(held_out)
        if heal is not None:
            self.training = read_training_texts(heal)
            if chosen is None:
                self.training, chosen = set_aside(self.training)
                self.name = "held out of the healing text"
            else:
                known = set(chosen)
                self.training = [text for text in self.training if text not in known]
        limit = min(config.max_position_embeddings for config in configs)
        if tokenizer is None:
            self.name = "random tokens"
            self.held_out = random_rows(configs[0].vocab_size, min(limit, 64))
            return
        self.held_out = encode(tokenizer, chosen if chosen is not None else own_texts(), min(limit, 512))
        if not self.held_out:
            raise UserError("There is no text to measure on. Give at least one.")

    def agreement(self, model: PreTrainedModel, original: PreTrainedModel) -> Agreement:
        """The agreement of two models on the measurement texts."""
        special = set() if self.tokenizer is None else special_tokens(self.tokenizer)
        measured = self.tokenizer if self.task == "fill-mask" else None
        return compare(model, original, self.held_out, self.name, tokenizer=measured, special=special)
