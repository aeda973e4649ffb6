"""`convert`: makes a PosEnc checkpoint, with any positional scheme, from a pretrained one of the BERT family."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..checkpoints.files import REPORT_NAME, read_json
from ..checkpoints.keeper import OutputFolder, check_apart, is_model_file, output_folder
from ..checkpoints.sentence_modules import ACTIVATION, read_modules, write_modules
from ..checkpoints.tokenizers import check_ids
from ..errors import UserError, user_errors
from ..files import expanded, last_name, write_json
from ..model.package_config import PosEncConfig
from ..options import OF_LABELS, READING, Options
from ..quiet import alone, without_bars
from ..training.inference import Row
from .families import FAMILIES, SOURCE
from .fields import not_carried
from .heal import Healing, read_training_texts, remove_healing, set_aside
from .heal import heal as run_healing
from .loading import Loaded, load
from .measure import compare, encode, own_texts, random_tokens, special_tokens, verify
from .report import Agreement, ConversionReport
from .swap import swap, target_config

_EXACT = 1e-5
"""The largest error of a conversion that keeps the scheme, on the models that were measured."""
_LONGEST = 512
"""Tokens of a text that agreement is measured on."""


@alone()
@without_bars()
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
    heal: Any = None,
    eval_texts: Any = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_other_tokens: bool = False,
    overwrite: bool = False,
    measure: bool = True,
    seed: int = 0,
    **settings: Any,
) -> tuple[PreTrainedModel, ConversionReport]:
    """Makes a PosEnc model of a pretrained checkpoint, and measures how well it agrees with it.

    Without a scheme the model keeps the source's own (`learned` for BERT): hidden states and logits at real tokens are
    equal to 1e-5, and the report holds the measured difference. With another scheme the weights are kept, and the new
    scheme is fitted to the old one as far as possible (see `swap`). The result isn't a drop-in replacement: the report
    gives its distance to the original, before and after healing. One call swaps, heals at the source's lengths, then
    extends.

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
            `interpolate` (stretched), see `fitting.extended_table`; or how RoPE does: `linear`, `dynamic`, `yarn`.
        task: the task of the result, one of `TASKS`. None: the source's. A head that the source lacks is new.
        heal: unlabelled text (a file, texts, or a table in memory) to heal a swapped model with: see `heal`.
        eval_texts: texts to measure on, in any of these forms. None: those that healing sets aside, or sentences of the
            package.
        revision: branch, tag or commit on the Hub.
        allow_pickle: read weights from a .bin file, if there are no others.
        allow_other_tokens: take a tokenizer that gives other ids than the source's `tokenizer.json`.
        overwrite: replace what was written into `out`, when the new files are complete.
        measure: measure agreement. False saves time and a second model's memory.
        seed: of everything random.
        settings: of `Healing`, such as `max_steps`; and how files and tables of text are read, by the options of
            `hf-posenc predict`: `text_column`, `join`, `delimiter`, `quoting`, `encoding`, `format`. While it heals,
            checkpoints lie in `OUT.healing`, from which the same call goes on after Ctrl-C.

    Returns:
        The model in evaluation mode, and a `ConversionReport`.

    Raises:
        UserError: the source can't be read or isn't supported, a key isn't accounted for, the scheme or an argument
            doesn't exist, a setting of healing is given without `heal`, or `out` is taken.
    """
    torch.default_generator.manual_seed(seed)
    source, out, heal, eval_texts = str(expanded(source)), expanded(out), expanded(heal), expanded(eval_texts)
    with user_errors():
        PosEncConfig(position_embedding_type=position_embedding_type or "none")
    reading, healing = _settings(heal, eval_texts, seed, settings)
    if out is not None:
        check_apart(out, source)
    with output_folder(out, overwrite=overwrite) if out is not None else contextlib.nullcontext() as output:
        loaded = load(source, task=task, revision=revision, allow_pickle=allow_pickle)
        model, original, tokenizer = loaded.model, loaded.model, loaded.tokenizer
        scheme = (position_embedding_type, position_embedding_kwargs, rope_parameters)
        length = (max_position_embeddings, extension)
        final, changed = target_config(original, *scheme, *length)  # what can't be is refused before a healing
        config = final
        if heal is not None:
            config, changed = target_config(original, *scheme, None, None)
            _check_healing(loaded, config, changed)
        modules, kept = read_modules(loaded.source.folder, source, max_position_embeddings, loaded.task)
        report = _begin_report(loaded, final, kept, allow_other_tokens)
        limit = min(original.config.max_position_embeddings, final.max_position_embeddings)
        training, rows, measured_on = _texts(loaded, heal, eval_texts, reading, limit)
        special = set() if tokenizer is None else special_tokens(tokenizer)

        def agreement() -> Agreement | None:
            return compare(model, original, rows, measured_on, special) if measure else None

        if measure:
            _measure_exactness(report, loaded, rows[:: -(-len(rows) // 64)], measured_on)
        loaded.original = None  # its memory is free again
        if changed:
            model, report.carried = swap(original, config, tokenizer=tokenizer, extension=extension, seed=seed)
            report.before = agreement()
        healed_in = None if out is None or heal is None else Path(f"{Path(out)}.healing")
        if heal is not None:
            options: dict[str, Any] = {"tokenizer": tokenizer, "healing": healing, "folder": healed_in}
            run = partial(run_healing, model, original, training, anew=overwrite, **options)
            _heal(report, model, run, agreement)
            config, changed = target_config(model, None, None, None, *length)
            if changed:
                model, lines = swap(model, config, tokenizer=tokenizer, extension=extension, seed=seed)
                report.carried, report.extended = report.carried + lines, agreement()
        _finish(report, loaded, model, max_position_embeddings)
        if output is not None:
            _write(output, model, tokenizer, modules, report)
        if healed_in is not None:
            remove_healing(healed_in)
        return model, report


def _settings(heal: Any, eval_texts: Any, seed: int, settings: dict[str, Any]) -> tuple[Options, Healing]:
    """How texts are read, and how to heal with them; refuses what has no effect where there are none."""
    given = {name: value for name, value in settings.items() if value is not None}
    reading = {name: given.pop(name) for name in READING if name not in OF_LABELS and name in given}
    useless = (given | (reading if eval_texts is None else {})) if heal is None else {}
    if useless:
        said = ", ".join(f"{name}={value!r}" for name, value in useless.items())
        raise UserError(f"{said} has no effect without text to heal with. Give that as heal, or leave it out.")
    return Options(**reading), Healing(seed=seed, **given)


def _heal(
    report: ConversionReport, model: PreTrainedModel, run: Callable[[], Any], agreement: Callable[[], Agreement | None]
) -> None:
    """Heals a swapped model in place, and keeps the weights from before where that took it farther away."""
    swapped = {name: value.clone() for name, value in model.state_dict().items()}
    report.healing = run()
    report.after = agreement()
    if report.before and report.after and not report.after.distance <= report.before.distance:  # type: ignore[operator]
        model.load_state_dict(swapped)  # it was nearly exact, or the steps were too few
        report.after = report.before
        report.notes.append("Healing took it farther from the original: the weights from before it are kept.")


def _trained_length(loaded: Loaded) -> int:
    """Where the positions end that a source was trained on: `convert` may have extended it."""
    path = loaded.source.folder / REPORT_NAME
    report = read_json(path, loaded.source.name, dict) if path.is_file() else {}
    return int(report.get("trained_length") or loaded.model.config.max_position_embeddings)


def _check_healing(loaded: Loaded, config: Any, changed: bool) -> None:
    """Refuses what can't be healed."""
    source, scheme, trained = loaded.source.name, config.position_embedding_type, _trained_length(loaded)
    if loaded.tokenizer is None:
        raise UserError(f"{source!r} has no tokenizer, so text can't heal it. Put its tokenizer into the folder.")
    if trained < config.max_position_embeddings:
        raise UserError(
            f"{source!r} is extended already, from {trained} to {config.max_position_embeddings} positions, and its "
            f"answers past {trained} would be healed towards. Heal what it was made from, then extend that: "
            f"`hf-posenc convert SOURCE -o HEALED --scheme {scheme} --heal FILE`, and "
            f"`hf-posenc convert HEALED -o OUT --max-position-embeddings {config.max_position_embeddings}`."
        )
    if not changed:
        raise UserError(
            f"heal has no effect: the scheme stays {scheme!r} and the model computes what the source does. Leave it "
            "out, or name another scheme."
        )


def _texts(loaded: Loaded, heal: Any, held_out: Any, reading: Options, limit: int) -> tuple[list[str], list[Row], str]:
    """The texts to heal with, the token ids of others to measure on, and what those are."""
    config: Any = loaded.model.config
    training = [] if heal is None else read_training_texts(heal, reading)
    chosen, name = own_texts(), "blimp_order, which comes along"
    if held_out is not None:
        chosen, name = read_training_texts(held_out, reading), "eval_texts"
        measured = set(chosen)
        training = [text for text in training if text not in measured]
    elif heal is not None:
        training, chosen = set_aside(training)
        name = "held out of the healing text"
    if loaded.tokenizer is not None:
        return training, encode(loaded.tokenizer, chosen, min(limit, _LONGEST)), name
    ids = random_tokens(config, None, 16, min(limit, 64)).tolist()
    return [], [{"input_ids": row[: 1 + len(row) * number // 16]} for number, row in enumerate(ids)], "random tokens"


def _begin_report(loaded: Loaded, config: Any, kept: list[str], allow_other_tokens: bool) -> ConversionReport:
    """A report of what was read; the tokenizer's ids are checked for it."""
    source, trained = loaded.source.name, _trained_length(loaded)
    said = ["The source has none."]
    if loaded.tokenizer is not None:
        said = check_ids(loaded.tokenizer, loaded.source.folder, source, allowed=allow_other_tokens, is_saved=True)
    return ConversionReport(
        source=last_name(source),
        family=loaded.model_type,
        task=loaded.task,
        from_scheme=loaded.model.config.position_embedding_type,
        to_scheme=config.position_embedding_type,
        max_position_embeddings=config.max_position_embeddings,
        keys=loaded.keys,
        trained_length=trained if config.max_position_embeddings > trained else None,
        tokenizer=" ".join(said),
        notes=loaded.notes + kept,
    )


def _measure_exactness(report: ConversionReport, loaded: Loaded, rows: list[Row], texts: str) -> None:
    """Measures how far the model, with the source's own scheme, is from transformers' model."""
    report.exact = verify(loaded, rows, texts)
    if report.exact is None and loaded.model_type != "posenc":
        report.notes.append("How exact it is can't be measured: transformers 5 has no such model to compare with.")
    if report.exact is not None and not report.exact.hidden_max <= _EXACT * 10:
        report.notes.append(
            f"As converted it isn't exact on these texts: hidden states differ from transformers' own by up to "
            f"{report.exact.hidden_max:.2g}, where {_EXACT:g} was expected. Do texts hold the padding token?"
        )


def _finish(report: ConversionReport, loaded: Loaded, model: PreTrainedModel, longest: int | None) -> None:
    """Gives model and tokenizer what they have of the source, and the report what they lack."""
    model.eval().to(loaded.source.dtype)  # type: ignore[arg-type]
    tokenizer = loaded.tokenizer
    if loaded.task == "text-classification" and not loaded.keys.new:
        model.config.update({name: value for name, value in loaded.source.raw.items() if name in ACTIVATION})
    if loaded.model_type in FAMILIES:
        others = getattr(model.config, "task_specific_params", None) or {}
        model.config.task_specific_params = {**others, SOURCE: loaded.model_type}
        report.notes += not_carried(FAMILIES[loaded.model_type], model.config, tokenizer, loaded.source)
    report.notes += _not_copied(loaded.source.folder)
    if tokenizer is not None:
        # The length that was asked for; else the tokenizer's, up to the end of a table.
        scheme: Any = model.base_model.position  # type: ignore[union-attr]
        end = scheme.max_length or loaded.model.config.max_position_embeddings
        tokenizer.model_max_length = longest or min(tokenizer.model_max_length, end)


def _not_copied(folder: Path) -> list[str]:
    """A sentence on what lies in a folder beside a model, which a conversion doesn't copy."""
    names = sorted(path.name for path in folder.iterdir() if not is_model_file(path) and path.name[0] != ".")
    shown = ", ".join(names[:4]) + ", ..." * (len(names) > 4)
    return [f"Files of the source that aren't copied: {len(names)} ({shown})."] if names else []


def _write(
    output: OutputFolder,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    modules: dict[str, bytes],
    report: ConversionReport,
) -> None:
    """Writes a model with its tokenizer, a sentence-transformer's modules and conversion.json: whole or not at all."""
    with output.replaced() as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        write_modules(folder, modules)
        write_json(folder / REPORT_NAME, report.to_dict())
