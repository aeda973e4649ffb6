"""`convert`: makes a PosEnc checkpoint, with any positional scheme, from a pretrained one of the BERT family."""

import contextlib
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..checkpoints.files import REPORT_NAME, read_json, training_marks
from ..checkpoints.keeper import OutputFolder, check_apart, is_model_file, output_folder
from ..checkpoints.sentence_modules import ACTIVATION, read_modules, write_modules
from ..checkpoints.tokenizers import check_ids, without_cuts
from ..data.columns import OURS, notes_of
from ..data.texts import own_texts, read_training_texts
from ..errors import UserError, checks_types, fits, spell, user_errors
from ..files import expanded, last_name, write_json, write_text
from ..inference.logits import Row
from ..model.configuration_posenc import PosEncConfig
from ..model.position_rope import ROPE_COMMON
from ..options import SEED, Options, check_range
from ..quiet import alone, without_bars
from ..schemes.names import require_scheme
from ..schemes.scheme_file import register_scheme
from ..schemes.support import code_files
from .card import converted_card
from .families import FAMILIES, SOURCE
from .fields import not_carried
from .heal import Healing, heal, remove_healing, set_aside, without_measured
from .loading import Loaded, load_source
from .measure import EXACT, TOLERANCE, measure_agreement, random_tokens, special_tokens, tokenize, verify
from .report import Agreement, Conversion, ConversionReport
from .swap import OF_LOGITS, ROPE_EXTENSIONS, Target, swap, target_config

_LONGEST = 512
"""Tokens of a text that agreement is measured on."""
_VERIFIED = 64
"""Texts, at most, on which a converted model is compared with transformers' own."""


@checks_types
@alone()
@without_bars()
def convert(
    source: str | Path,
    output: str | Path | None = None,
    *,
    scheme: str | None = None,
    scheme_kwargs: dict[str, Any] | None = None,
    scheme_file: str | Path | None = None,
    rope_parameters: dict[str, Any] | None = None,
    max_position_embeddings: int | None = None,
    extension: str | None = None,
    head: str | None = None,
    healing: Healing | None = None,
    eval_texts: Any = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_other_tokens: bool = False,
    overwrite: bool = False,
    measure: bool = True,
    seed: int = 42,
) -> Conversion:
    """Makes a PosEnc model of a pretrained checkpoint, and measures how well it agrees with it.

    Without a scheme the model keeps the source's own (`learned` for BERT): hidden states and logits at real tokens are
    equal to 1e-5, and the report holds the measured difference. With another scheme the weights are kept, and the new
    scheme is fitted to the old one as far as possible. The result isn't a drop-in replacement: the report gives its
    distance to the original, before and after healing. One call swaps, heals at the source's lengths, then extends.

    Args:
        source: a folder, or a name on the Hub: BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA, RoFormer, MPNet,
            DeBERTa, GTE, NomicBERT, JinaBERT v2, ESM-2, EuroBERT-210m, transformers' jina_embeddings_v3 and modernbert,
            or ours.
        output: the folder to write, with code, tokenizer, a sentence-transformer's modules, a card and
            `conversion.json`; whole or not at all. None: writes nothing.
        scheme: the positional scheme. None: the source's own.
        scheme_kwargs: the scheme's arguments. A scheme that the source has keeps those that aren't given. None: those
            that suit a conversion.
        scheme_file: a Python file with a scheme of your own, see `register_scheme`.
        rope_parameters: of RoPE. Thetas and shares that aren't given stay as they were trained.
        max_position_embeddings: how long inputs may be. None: as long as the source's.
        extension: how a table of positions grows: `tile` (repeated: short texts keep their outputs) or `interpolate`
            (stretched); or how RoPE does: `linear`, `dynamic`, `yarn`.
        head: what the result has, by transformers' name of its task: `feature-extraction` (none), `fill-mask`,
            `text-classification`, `token-classification`, `question-answering`, `multiple-choice`. None: the source's.
            A head that the source lacks is new: with as many labels, but without their names.
        healing: text to heal a swapped model with, and how. None: it isn't healed. While it heals, checkpoints lie in
            `OUTPUT.healing`, from which the same call goes on after Ctrl-C.
        eval_texts: texts to measure on: a file or table, which is read as that of `healing`, or texts. None: those that
            healing sets aside, or sentences of the package.
        revision: branch, tag or commit on the Hub.
        allow_pickle: read weights from a .bin file, if there are no others.
        allow_other_tokens: take a tokenizer that gives other ids than the source's `tokenizer.json`.
        overwrite: replace what was written into `output`, when the new files are complete.
        measure: measure agreement. False saves time and a second model's memory.
        seed: of everything random.

    Returns:
        The model in evaluation mode, its tokenizer, and a report.

    Raises:
        UserError: the source can't be read or isn't supported, a key isn't accounted for, its head computes something
            else here, the scheme or an argument doesn't exist, there is nothing to heal, or `output` is taken.
        Diverged: so did healing.
        Interrupted: Ctrl-C while it heals; the message says how to go on.
    """
    check_range("seed", seed, SEED)
    if scheme_file is not None:
        register_scheme(scheme_file, scheme)
    if scheme is not None:
        require_scheme(scheme, scheme_kwargs)
    torch.default_generator.manual_seed(seed)
    source = str(expanded(source))
    output = None if output is None else Path(expanded(output))
    target = Target(scheme, scheme_kwargs, rope_parameters, max_position_embeddings, extension)
    if output is not None:
        check_apart(output, source)
    with contextlib.nullcontext() if output is None else output_folder(output, overwrite=overwrite) as folder:
        loaded = load_source(source, task=head, revision=revision, allow_pickle=allow_pickle)
        final = _final_config(loaded, target, heals=healing is not None, is_saved=output is not None)
        if healing is not None:
            _check_healing(loaded, target, healing)
        modules, kept = read_modules(loaded.source.folder, source, max_position_embeddings, loaded.task)
        tokens = _check_tokenizer(loaded, allow_other_tokens)
        longest = min(loaded.model.config.max_position_embeddings, final.max_position_embeddings)
        texts = _read_texts(loaded, healing, eval_texts, longest, measure)
        exact = verify(loaded, texts.rows[:: -(-len(texts.rows) // _VERIFIED)], texts.name) if measure else None
        said = [*loaded.notes, *kept, *(_exactness(loaded, exact) if measure else [])]
        loaded = replace(loaded, original=None)  # its memory is free again
        steps = _Steps(loaded, texts, seed, measure)
        checkpoints = None if output is None or healing is None else Path(f"{os.path.abspath(output)}.healing")
        if healing is None:
            outcome = steps.swap(target)
        else:
            outcome = steps.swap(target.at_the_old_length)
            outcome = steps.heal(outcome, healing, checkpoints, overwrite)
            outcome = steps.extend(outcome, target.length_alone)
        _adopt(loaded, outcome.model, max_position_embeddings)
        said += _leave_temperature(loaded.model.config, outcome.model.config, extension)
        report = _report(loaded, outcome, target, exact=exact, tokenizer=" ".join(tokens), notes=said)
        if folder is not None:
            card = converted_card(last_name(str(output)), report, loaded.source, is_sentence_transformer=bool(modules))
            _write(folder, outcome.model, loaded, modules, report, card)
        if checkpoints is not None:
            remove_healing(checkpoints)
    return Conversion(outcome.model, loaded.tokenizer, report)


@dataclass(frozen=True)
class _Texts:
    """Texts to heal with and to measure on."""

    training: list[str]
    rows: list[Row]
    """To measure on."""
    name: str
    """What these are."""


@dataclass(frozen=True)
class _Outcome:
    """The model after some steps of a conversion, and what they did, by the names of `ConversionReport`."""

    model: PreTrainedModel
    carried: list[dict[str, Any]]
    before: Agreement | None
    healing: dict[str, Any] | None = None
    after: Agreement | None = None
    extended: Agreement | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Steps:
    """The steps from the original to the result; each measures what it did."""

    loaded: Loaded
    texts: _Texts
    seed: int
    measures: bool

    def swap(self, target: Target) -> _Outcome:
        """The original under another scheme, or length; itself if it has both."""
        original = self.loaded.model
        model, carried = self._changed(original, target)
        return _Outcome(model, carried, None if model is original else self._agreement(model))

    def heal(self, swapped: _Outcome, healing: Healing, folder: Path | None, anew: bool) -> _Outcome:
        """Heals a swapped model in place, and keeps the weights from before where that took it farther away."""
        tokenizer = self.loaded.tokenizer
        assert tokenizer is not None, "see _check_healing"
        model = swapped.model
        original = self.loaded.model
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        train = partial(heal, model, original, self.texts.training, tokenizer=tokenizer)
        record = train(healing=healing, seed=self.seed, folder=folder, anew=anew)
        _round(model, self.loaded.source.dtype)
        before = swapped.before
        after = self._agreement(model)
        if before is None or after is None or after.distance <= before.distance:  # type: ignore[operator]
            return replace(swapped, healing=record, after=after)
        model.load_state_dict(weights)  # it was nearly exact, or the steps were too few
        note = "Healing took it farther from the original: the weights from before it are kept."
        return replace(swapped, healing=record, after=before, notes=(note,))

    def extend(self, healed: _Outcome, target: Target) -> _Outcome:
        """A healed model at another length; itself if it has that."""
        model, carried = self._changed(healed.model, target)
        if model is healed.model:
            return healed
        return replace(healed, model=model, carried=healed.carried + carried, extended=self._agreement(model))

    def _changed(self, model: PreTrainedModel, target: Target) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
        """A model with the positions of a target, and what was carried over; itself if it has them."""
        config, differs = target_config(model, target, _trained_length(self.loaded))
        if not differs:
            return model, []
        tokenizer = self.loaded.tokenizer
        swapped, carried = swap(model, config, tokenizer=tokenizer, extension=target.extension, seed=self.seed)
        _round(swapped, self.loaded.source.dtype)
        return swapped, carried

    def _agreement(self, model: PreTrainedModel) -> Agreement | None:
        """With the original; None: it isn't measured."""
        if not self.measures:
            return None
        special = set() if self.loaded.tokenizer is None else special_tokens(self.loaded.tokenizer)
        return measure_agreement(model, self.loaded.model, self.texts.rows, self.texts.name, special)


def _final_config(loaded: Loaded, target: Target, *, heals: bool, is_saved: bool) -> PosEncConfig:
    """The configuration of the result; refuses before a healing what can't be, or couldn't be saved."""
    model: Any = loaded.model
    if heals:
        config, _ = target_config(model, target.at_the_old_length)
        with torch.device("meta"):  # what is extended is healed, and may have tables
            model = type(model)(config)
        target = target.length_alone
    config, _ = target_config(model, target, _trained_length(loaded))
    if is_saved:
        with user_errors():
            code_files(config)
    return config


def _trained_length(loaded: Loaded) -> int:
    """Where the positions end that a source was trained on: `convert` may have extended it."""
    path = loaded.source.folder / REPORT_NAME
    trained = read_json(path, loaded.source.name, dict).get("trained_length")
    if not fits(trained, int | None):
        wrong = f"{loaded.source.name!r}: {REPORT_NAME} has trained_length={trained!r}, which is no number"
        raise UserError(f"{wrong}. Copy the checkpoint anew.")
    return trained or loaded.model.config.max_position_embeddings


def _check_healing(loaded: Loaded, target: Target, healing: Healing) -> None:
    """Refuses what can't be healed."""
    config, changes = target_config(loaded.model, target.at_the_old_length)
    source = loaded.source.name
    scheme = config.position_embedding_type
    trained = _trained_length(loaded)
    if loaded.tokenizer is None:
        raise UserError(f"{source!r} has no tokenizer, so text can't heal it. Put its tokenizer into the folder.")
    if trained < (longest := config.max_position_embeddings):
        raise UserError(
            f"{source!r} is extended already, from {trained} to {longest} positions, and its "
            f"answers past {trained} would be healed towards. Heal what it was made from, with "
            f"{spell('scheme', scheme)}, and extend that: {spell('max_position_embeddings', longest)}."
        )
    if healing.max_length is not None and healing.max_length > longest:
        raise UserError(
            f"is more than the source reads: its positions end at {longest}. Leave it out, or give less.",
            parameter="max_length",
            value=healing.max_length,
        )
    if not changes:
        raise UserError(
            f"Healing has no effect: the scheme stays {scheme!r}, and the model computes what the source does. Leave "
            f"it out, or name another {spell('scheme')}."
        )


def _read_texts(loaded: Loaded, healing: Healing | None, held_out: Any, longest: int, measures: bool) -> _Texts:
    """Texts to heal with, and others to measure on, as token ids, up to `longest`."""
    if held_out is not None and healing is None and not measures:
        unread = f"has no effect with {spell('measure', False)}. Leave one of them out."
        raise UserError(unread, parameter="eval_texts")
    reading = Options() if healing is None else healing.reading()
    training = [] if healing is None else read_training_texts(expanded(healing.texts), reading)
    chosen = own_texts()
    name = "blimp_order, which comes along"
    if held_out is not None:
        if not isinstance(held_out, (str, Path)):
            reading = replace(reading, delimiter=None, quoting=None, encoding=None, format=None)
        chosen = read_training_texts(expanded(held_out), reading)
        name = "eval_texts"
        if healing is not None:
            training = without_measured(training, set(chosen))
    elif healing is not None:
        training, chosen = set_aside(training)
        name = "held out of the healing text"
    if loaded.tokenizer is not None:
        rows, _ = tokenize(loaded.tokenizer, chosen, min(longest, _LONGEST))
        return _Texts(training, rows, name)
    ids = random_tokens(loaded.model.config, None, 16, min(longest, 64)).tolist()
    rows = [{"input_ids": row[: 1 + len(row) * number // 16]} for number, row in enumerate(ids)]
    return _Texts([], rows, "random tokens")


def _check_tokenizer(loaded: Loaded, allow_other_tokens: bool) -> list[str]:
    """Sentences on the source's tokenizer, whose ids are compared with those of its `tokenizer.json`."""
    if loaded.tokenizer is None:
        return ["The source has none."]
    source = loaded.source
    return check_ids(loaded.tokenizer, source.folder, source.name, allowed=allow_other_tokens, is_saved=True)


def _exactness(loaded: Loaded, exact: Agreement | None) -> list[str]:
    """A sentence where a model with the source's own scheme isn't exact, or can't be compared."""
    if exact is None:
        is_ours = loaded.model_type == "posenc"
        return ["How exact it is can't be measured: transformers 5 has no such model to compare with."] * (not is_ours)
    if exact.hidden_max <= TOLERANCE:
        return []
    return [
        f"As converted it isn't exact on these texts: hidden states differ from transformers' own by up to "
        f"{exact.hidden_max:.2g}, where {EXACT:g} was expected. Do texts hold the padding token?"
    ]


def _round(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Gives float32 weights the values that the source's dtype holds, so that what is measured is what is saved."""
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.to(dtype))


def _adopt(loaded: Loaded, model: PreTrainedModel, longest: int | None) -> None:
    """Gives a converted model, and its tokenizer, what isn't in the weights: the source's dtype, names and length."""
    model.eval().to(loaded.source.dtype)  # type: ignore[arg-type]
    if loaded.task == "text-classification" and not loaded.keys.new:
        model.config.update({name: value for name, value in loaded.source.raw.items() if name in ACTIVATION})
    if loaded.model_type in FAMILIES:
        others = getattr(model.config, "task_specific_params", None) or {}
        model.config.task_specific_params = {**others, SOURCE: loaded.model_type}
    if loaded.tokenizer is not None:
        # The length that was asked for; else the tokenizer's, up to the end of a table.
        scheme: Any = model.base_model.position  # type: ignore[union-attr]
        end = scheme.max_length or loaded.model.config.max_position_embeddings
        loaded.tokenizer.model_max_length = longest or min(loaded.tokenizer.model_max_length, end)


def _leave_temperature(source: Any, config: Any, extension: str | None) -> list[str]:
    """Drops the temperature that a training fitted to the logits of other positions, and says so.

    A longer limit alone, or a table that is repeated, changes no logits of texts that the source reads.
    """
    changes = extension == "interpolate" or any(getattr(source, n) != getattr(config, n) for n in OF_LOGITS)
    if not changes or "temperature" not in notes_of(config):
        return []
    ours = {name: value for name, value in notes_of(config).items() if name != "temperature"}
    config.task_specific_params = {**config.task_specific_params, OURS: ours}
    return ["The temperature that its training fitted is left out: logits are others with other positions."]


def _report(
    loaded: Loaded, outcome: _Outcome, target: Target, *, exact: Agreement | None, tokenizer: str, notes: list[str]
) -> ConversionReport:
    """The report of a conversion that has ended, with what isn't carried over."""
    config: Any = outcome.model.config
    trained = _trained_length(loaded)
    length = config.max_position_embeddings
    left: list[str] = []
    if loaded.model_type in FAMILIES:
        left = not_carried(FAMILIES[loaded.model_type], config, loaded.tokenizer, loaded.source)
    return ConversionReport(
        source=last_name(loaded.source.name),
        family=loaded.model_type,
        head=loaded.task,
        from_scheme=loaded.model.config.position_embedding_type,
        to_scheme=config.position_embedding_type,
        swapped=_is_swapped(loaded.model.config, config, target.extension),
        max_position_embeddings=length,
        keys=loaded.keys,
        trained_length=trained if length > trained else None,
        carried=outcome.carried,
        tokenizer=tokenizer,
        notes=[*notes, *outcome.notes, *left, *_not_copied(loaded.source.folder)],
        exact=exact,
        before=outcome.before,
        healing=outcome.healing,
        after=outcome.after,
        extended=outcome.extended,
    )


def _is_swapped(before: Any, after: Any, extension: str | None) -> bool:
    """True where a scheme or its arguments are others, apart from what an extension changes."""
    if any(getattr(before, name) != getattr(after, name) for name in OF_LOGITS[:2]):
        return True
    if extension not in ROPE_EXTENSIONS:
        return bool(before.rope_parameters != after.rope_parameters)
    angles = [config.rope_parameters or {} for config in (before, after)]
    return any(angles[0].get(name) != angles[1].get(name) for name in ROPE_COMMON if name != "rope_type")


def _not_copied(folder: Path) -> list[str]:
    """A sentence on what lies in a folder beside a model, which a conversion doesn't copy."""
    names = sorted(path.name for path in folder.iterdir() if not is_model_file(path) and path.name[0] != ".")
    shown = ", ".join(names[:4]) + ", ..." * (len(names) > 4)
    return [f"Files of the source that aren't copied: {len(names)} ({shown})."] if names else []


def _write(
    output: OutputFolder,
    model: PreTrainedModel,
    loaded: Loaded,
    modules: dict[str, bytes],
    report: ConversionReport,
    card: str,
) -> None:
    """Writes a model with its tokenizer, a sentence-transformer's modules, conversion.json and a card, or nothing."""
    with output.replaced() as folder:
        model.save_pretrained(folder)
        if loaded.tokenizer is not None:
            without_cuts(loaded.tokenizer).save_pretrained(folder)
        write_modules(folder, modules | training_marks(loaded.source.folder))
        write_json(folder / REPORT_NAME, report.to_dict())
        write_text(folder / "README.md", card)
