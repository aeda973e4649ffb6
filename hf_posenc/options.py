"""The options of a training: one dataclass, which the command line, `fit`, the estimators and plans read."""

import contextlib
import difflib
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_args, get_origin

import typer

from .errors import UserError, check_type, spell
from .files import expanded, without_folders
from .schemes.names import known_schemes


class Range(NamedTuple):
    """The values that an option takes, in words and as a test."""

    text: str
    holds: Callable[[Any], bool]

    def fault(self, value: Any) -> str | None:
        """Says what is wrong with a value, to stand behind it; None: nothing, or the value is None."""
        try:
            holds = value is None or (self.holds(value) and isinstance(value, bool) is (self is BOOLEAN))
        except TypeError:  # a string where a number is wanted, or a fraction where a whole one is
            holds = False
        return None if holds else f"is out of range. Give {self.text}."


def whole_number(least: int, most: int | None = None) -> Range:
    """A whole number from `least` on, up to `most` if there is one."""
    text = f"a whole number from {least}" + ("" if most is None else f" to {most}")
    return Range(text, lambda value: least <= operator.index(value) and (most is None or value <= most))


COUNT = whole_number(1)
LENGTH = whole_number(3)  # [CLS], a token of the text, [SEP]
SEED = whole_number(0, 2**32 - 1)
POSITIVE = Range("a positive number", lambda value: 0 < value < math.inf)
SHARE = Range("a number from 0 to below 1", lambda value: 0 <= value < 1)
BOOLEAN = Range("true or false", lambda value: isinstance(value, bool))
FROM_0_TO_1 = Range("a number from 0 to 1", lambda value: 0 <= value <= 1)
_FACTOR = Range("a number from 0 to 1000", lambda value: 0 <= value <= 1000)


def check_range(parameter: str, value: Any, accepts: Range) -> None:
    """Raises a UserError if a parameter's value isn't one that is accepted; None always is."""
    if fault := accepts.fault(value):
        raise UserError(fault, parameter=parameter, value=value)


def _check_value(parameter: str, value: Any, kind: Any, *ranges: Range) -> None:
    """Raises a UserError if an option's value is no choice of its type, isn't of that type, or out of a range."""
    literal = next((part for part in (kind, *get_args(kind)) if get_origin(part) is Literal), None)
    if literal is not None and value is not None and value not in get_args(literal):
        known = f"is unknown. Choose one of {', '.join(get_args(literal))}."
        raise UserError(known, parameter=parameter, value=value)
    for accepts in ranges:
        check_range(parameter, value, accepts)
    if kind in (bool, int, float, str | None, bool | None):
        check_type(parameter, value, str | dict | None if parameter in _OBJECTS else kind)


def complete_scheme(incomplete: str) -> list[str]:
    """Shell completion of a scheme's name."""
    return [scheme for scheme in known_schemes() if scheme.startswith(incomplete)]


def _option(help: str, *names: str, **more: Any) -> Any:
    """Makes what the command line shows of an option; defaults stand in its help."""
    return typer.Option(*names, help=help, show_default=False, **more)


def _not_equals(output: str | None) -> str | None:
    """Refuses an output whose name begins with the sign of `-o=DIR`."""
    if output is not None and output.startswith("="):
        name = output[1:]
        raise UserError(f"-o={name} would write to {output!r}. Write -o {name}, or --output={name}.")
    return output


output_option = partial(typer.Option, "--output", "-o", callback=_not_equals)
"""Where a command writes to; `-o=DIR`, which names `=DIR`, is refused."""
_choice = partial(_option, metavar="<str>")  # the choices stand in its help

# What several commands take has one name and one help; each is a field of `Options`, too. `train --help` has a line for
# each: a help has 45 letters at most.
DataOption = Annotated[str | None, _option("File, folder, Hub name, or blimp_order (included).")]
DataConfigOption = Annotated[str | None, _option("Configuration of a Hub data set.")]
_Quotings = Literal["csv", "none"]
_Formats = Literal["csv", "tsv", "jsonl", "json", "parquet", "txt"]
_SCHEME = _option("Positions, see `schemes`. [rope, its own]", "--scheme", autocompletion=complete_scheme)
SchemeOption = Annotated[str | None, _SCHEME]
SchemeKwargsOption = Annotated[str | None, _option("The scheme's own arguments.", "--scheme-kwargs", metavar="JSON")]
SchemeFileOption = Annotated[str | None, _option("Python file with a scheme of yours.")]
_Sizes = Literal["tiny", "mini", "small", "base"]
SizeOption = Annotated[_Sizes | None, _choice("Of a new encoder: tiny, mini, small, base.")]
RevisionOption = Annotated[str | None, _option("Branch, tag or commit on the Hub.")]
OtherTokensOption = Annotated[bool, _option("Take a tokenizer whose ids changed.", "--allow-other-tokens")]
TrustOption = Annotated[bool, _option("Run a checkpoint's own code.", "--trust-remote-code")]
DeviceOption = Annotated[str | None, _option("cpu, cuda, mps. [a GPU if there is one]")]
_Windows = Literal["mean", "max"]
WINDOWS = get_args(_Windows)
"""How the answers of a long text's windows become one."""
WindowsOption = Annotated[
    _Windows | None, typer.Option(help="Read long texts in windows, by the mean or max of their answers.")
]
StrideOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tokens from a window to the next. [half a window]", show_default=False),
]
_ProblemTypes = Literal["single_label_classification", "multi_label_classification", "regression"]
_Schedules = Literal["linear", "cosine", "constant", "constant_with_warmup", "one-cycle"]


READING = (
    *("text_column", "join", "label_column", "label_delimiter", "label_names", "skip_missing"),
    *("delimiter", "quoting", "encoding", "format"),
)
"""Options that say how a file of data is read: every command that reads one has them (see `reads_data` in `cli`)."""
OF_LABELS = ("label_column", "label_delimiter", "label_names", "skip_missing")
"""Those of them that say nothing of texts alone."""
OF_SEVERAL_LABELS = "label_delimiter"
"""The one that a comparison hasn't, which is on one label per text."""
_LISTS = ("text_column", "label_column", "label_names")
"""Options that name several things, also as a list in Python."""
_OBJECTS = ("scheme_kwargs", "class_weights")
"""Options that may be a dictionary in Python, and are JSON on the command line."""
PATHS = ("output", "data", "validation", "test", "pretrained", "scheme_file", "tokenizer")
"""Options that may be paths, in which `~` is the home folder."""


@dataclass(kw_only=True)
class Options:
    """Options of reading and training. None: the default depends on the data or the model.

    Attributes:
        output: the folder for checkpoint and results.
        overwrite: replace the run that is there, when the new one is whole.
        resume: go on from the newest checkpoint of an unfinished run.
        data: a file, a folder, a data set's name on the Hub, or `blimp_order`, which comes along.
        data_config: the configuration of a data set on the Hub.
        validation: rows to validate on: a file, or the name of a split of `data`.
        test: rows that are scored at the end, in the same forms.
        validation_share: share of the training rows that is set aside to validate on, where there is no validation
            data; 0: none is.
        max_rows: train on so many of the first rows alone.
        text_column: the column of texts; two, `a,b`, are a pair. None: `text`, `sentence` or a usual pair.
        join: joins several columns of text, with this between them.
        label_column: the column of labels; several hold 0 and 1. None: `label` or `labels`.
        label_delimiter: separates several labels in one cell.
        label_names: what 0, 1, ... mean, in order, such as `no,yes`.
        problem_type: `single_label_classification`, `multi_label_classification` or `regression`, where labels could be
            either. None: it follows from how they are written.
        skip_missing: leave rows without text or label out.
        delimiter: separates columns: a character, or `tab`. None: by the suffix.
        quoting: `csv`: quotes enclose cells; `none`: they are letters. None: by the suffix.
        encoding: of text files, such as `latin-1`. None: `utf-8`.
        format: `csv`, `tsv`, `jsonl`, `json`, `parquet` or `txt`. None: by the suffix.
        pretrained: a checkpoint of the BERT family, which is converted, or one of ours, which goes on as it is unless
            another scheme is asked for. None: a new encoder.
        revision: branch, tag or commit of a checkpoint on the Hub.
        allow_other_tokens: take a tokenizer that gives other ids than the checkpoint's `tokenizer.json`.
        trust_remote_code: run the checkpoint's own code.
        scheme: the positional scheme. None: `rope`, or the checkpoint's own.
        scheme_kwargs: the scheme's own arguments, a dictionary or JSON.
        scheme_file: a Python file with a scheme of yours, which is registered.
        size: of a new encoder: `tiny` (the default), `mini`, `small` or `base`.
        tokenizer: a folder or Hub name. None: the checkpoint's, or one that is trained on the training texts.
        max_length: longer texts are cut to this many tokens. None: the model's limit, or 512.
        lora: train low-rank updates of the weights of `pretrained`.
        epochs: passes over the training rows. None: 4 to 100, more for fewer rows.
        max_steps: steps, instead of epochs.
        patience: stop after so many evaluations without gain.
        batch_size: texts per step and device. None: 32.
        learning_rate: the peak. None: 5e-5 to 1e-3, by the model.
        schedule: of the learning rate: `linear`, `cosine`, `constant`, `constant_with_warmup`, or `one-cycle`, which
            changes momentum (of Adam the first beta), too.
        word_rate: how many times the learning rate new word embeddings get.
        position_rate: how many times the learning rate the scheme's weights get. None: the scheme's own factors.
        class_weights: `balanced`, or a weight for each label as a dictionary or JSON.
        seed: of new weights and of the order of rows.
        bf16: train in bfloat16 mixed precision. None: where the machine is fast at it.
        device: `cpu`, `cuda` or `mps`. None: a GPU if there is one.
        set: other fields of `transformers.TrainingArguments` or of the configuration, as a dictionary or as
            `name=value`, where a value is JSON, or True, False or None, if it can be.

    Raises:
        UserError: a value isn't accepted.
    """

    output: Annotated[str | None, output_option(help="Folder for checkpoint and results.", show_default=False)] = None
    overwrite: Annotated[bool, _option("Replace its run when the new one is whole.", "--overwrite")] = False
    resume: Annotated[bool, _option("Go on from the run's newest checkpoint.", "--resume")] = False
    data: DataOption = None
    data_config: DataConfigOption = None
    validation: Annotated[str | None, _option("File, or a split of --data.")] = None
    test: Annotated[str | None, _option("The same, to be scored at the end.")] = None
    validation_share: Annotated[float, SHARE, _option("Of training rows, if none is given. [0.1]")] = 0.1
    max_rows: Annotated[int | None, COUNT, _option("Train on the first rows alone.")] = None
    text_column: Annotated[str | None, _option("Text; two, a,b, are a pair. [text, ...]")] = None
    join: Annotated[str | None, _option("Join the text columns with this between.")] = None
    label_column: Annotated[str | None, _option("Label; several hold 0 and 1. [label]")] = None
    label_delimiter: Annotated[str | None, _option("Between several labels in one cell.")] = None
    label_names: Annotated[str | None, _option("What 0, 1, ... mean, in order: no,yes")] = None
    problem_type: Annotated[_ProblemTypes | None, _choice("regression, single_label_classification, ...")] = None
    skip_missing: Annotated[bool, _option("Leave rows without text or label out.", "--skip-missing")] = False
    delimiter: Annotated[str | None, _option("Between columns: a character, or tab.")] = None
    quoting: Annotated[_Quotings | None, _choice("Quotes: csv (around cells), none (letters).")] = None
    encoding: Annotated[str | None, _option("utf-8 (default), latin-1, cp1252, ...")] = None
    format: Annotated[_Formats | None, _choice("csv, tsv, jsonl, json, parquet, txt. [suffix]")] = None
    pretrained: Annotated[str | None, _option("Start from this checkpoint: folder, Hub.")] = None
    revision: RevisionOption = None
    allow_other_tokens: OtherTokensOption = False
    trust_remote_code: TrustOption = False
    scheme: SchemeOption = None
    scheme_kwargs: SchemeKwargsOption = None
    scheme_file: SchemeFileOption = None
    size: SizeOption = None
    tokenizer: Annotated[str | None, _option("[the checkpoint's, or trained here]")] = None
    max_length: Annotated[int | None, LENGTH, _option("Longer texts are cut. [model's limit, 512]")] = None
    lora: Annotated[bool, _option("Train low-rank updates of --pretrained.", "--lora")] = False
    epochs: Annotated[float | None, POSITIVE, _option("[4 to 100: more for fewer rows]")] = None
    max_steps: Annotated[int | None, COUNT, _option("Steps, instead of epochs.")] = None
    patience: Annotated[int | None, COUNT, _option("Stop after so many evaluations in vain.")] = None
    batch_size: Annotated[int | None, COUNT, _option("Texts per step and device. [32]")] = None
    learning_rate: Annotated[float | None, FROM_0_TO_1, _option("Peak. [5e-5 to 1e-3, by the model]")] = None
    schedule: Annotated[_Schedules, _choice("linear (default), cosine, one-cycle, ...")] = "linear"
    word_rate: Annotated[float | None, _FACTOR, _option("Times the rate, for new words.")] = None
    position_rate: Annotated[float | None, _FACTOR, _option("Times the rate, for the scheme.")] = None
    class_weights: Annotated[str | None, _option('balanced, or JSON: {"rare": 5, "usual": 1}')] = None
    seed: Annotated[int, SEED, _option("Of weights and order. [42]")] = 42
    bf16: Annotated[bool | None, _option("Mixed precision. [if fast here]", "--bf16/--no-bf16")] = None
    device: DeviceOption = None
    set: Annotated[list[str] | None, _option("TrainingArguments, config; repeatable.", "--set", metavar="K=V")] = None

    def __post_init__(self) -> None:
        """Checks each value, and reads JSON."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Path):
                value = str(value)
            elif item.name in _LISTS and isinstance(value, list | tuple):
                value = json.dumps([*map(str, value)])
            setattr(self, item.name, value)
            _check_value(item.name, value, *get_args(item.type)[:-1])
        check_type("set", self.set, str | Mapping | Sequence | None)
        for name in PATHS:
            setattr(self, name, expanded(getattr(self, name)))
        if self.delimiter in ("tab", "\\t"):
            self.delimiter = "\t"
        self._check_separators()
        names = self.named_labels
        if self.label_names is not None and (len(names) < 2 or len({*names}) < len(names)):
            wanted = "must list each label once, in order: no,yes."
            raise UserError(wanted, parameter="label_names", value=self.label_names)
        if self.max_steps is not None:
            refuse_given(self, ("epochs",), f"has no effect beside {spell('max_steps')}")
        self.scheme_kwargs = cast(Any, json_object("scheme_kwargs", self.scheme_kwargs))
        self.set = cast(Any, _assignments(self.set))

    def _check_separators(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            wanted = "can't separate columns. Give one character, or tab."
            raise UserError(wanted, parameter="delimiter", value=self.delimiter)
        if self.label_delimiter == "":
            wanted = "separates no labels. Leave it out, or give a character."
            raise UserError(wanted, parameter="label_delimiter", value="")

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Options by name.

        Raises:
            UserError: there is no such option, or its value isn't accepted.
        """
        known = [item.name for item in fields(cls)]
        if unknown := [name for name in values if name not in known]:
            near = " or ".join(map(repr, difflib.get_close_matches(unknown[0], known, n=3)))
            meant = f"Did you mean {near}? " if near else ""
            raise UserError(
                f"Unknown option {unknown[0]!r}. {meant}`hf-posenc train --help` lists the options; fields of "
                f"TrainingArguments and of the configuration go into {spell(f'set.{unknown[0]}')}."
            )
        return cls(**values)

    @property
    def named_labels(self) -> tuple[str, ...]:
        """Names that `label_names` lists."""
        return tuple(words(self.label_names or ""))

    @property
    def assigned(self) -> dict[str, Any]:
        """Values that `set` gives, by name."""
        return cast(Any, self.set) or {}

    def changed(self) -> dict[str, Any]:
        """The options that aren't at their defaults."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}


def reading_options(reading: Mapping[str, Any], *left_out: str, **others: Any) -> Options:
    """The options of a function that reads data: those of reading that it was given, and others of its own.

    Raises:
        TypeError: what was given is no option of reading, or one that is left out.
        UserError: a value isn't accepted.
    """
    for name in reading:
        if name not in READING or name in left_out:
            known = ", ".join(name for name in READING if name not in left_out)
            raise TypeError(f"unexpected keyword argument {name!r}; data is read by {known}")
    return Options.of(**reading, **others)


def recorded(options: Mapping[str, Any], *, keep_relative: bool = False) -> dict[str, Any]:
    """Options as a record has them: paths by their last names, see `without_folders`."""
    kept = partial(without_folders, keep_relative=keep_relative)
    record = {name: kept(value) if name in PATHS else value for name, value in options.items()}
    if isinstance(fields := options.get("set"), Mapping):  # some of TrainingArguments are paths
        record["set"] = {name: kept(value) for name, value in fields.items()}
    return record


def words(text: str) -> list[str]:
    """The words between commas, or of a JSON list of strings, in which they may hold commas, blanks and quotes."""
    with contextlib.suppress(json.JSONDecodeError):
        listed = json.loads(text)
        if isinstance(listed, list) and all(isinstance(word, str) for word in listed):
            return listed
    return [word.strip() for word in text.split(",") if word.strip()]


def refuse_given(options: Options, names: Iterable[str], why: str) -> None:
    """Raises a UserError if an option of these names isn't at its default: the option, then `why`."""
    for name, value in options.changed().items():
        if name in names:
            raise UserError(f"{why}. Leave it out.", parameter=name, value=value)


def json_object(parameter: str, value: Any) -> dict[str, Any] | None:
    """The value of a parameter that is a JSON object, or a dictionary already.

    Raises:
        UserError: it isn't one.
    """
    if value is None or isinstance(value, dict):
        return value
    with contextlib.suppress(json.JSONDecodeError, TypeError):
        if isinstance(parsed := json.loads(value), dict):
            return parsed
    raise UserError("is no JSON object. Give one: '{\"name\": 1}'.", parameter=parameter, value=value)


def _assignments(given: Any) -> dict[str, Any] | None:
    """`name=value` words, or a dictionary, as a dictionary."""
    if given is None or isinstance(given, Mapping):
        return dict(given) if given else None
    assigned: dict[str, Any] = {}
    for word in [given] if isinstance(given, str) else given:
        name, equals, text = str(word).partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            way_out = f"assigns nothing. Write {spell('set.weight_decay', 0.01)}."
            raise UserError(way_out, parameter="set", value=word)
        assigned[name] = {"True": True, "False": False, "None": None}.get(text, text)
        with contextlib.suppress(json.JSONDecodeError):
            assigned[name] = json.loads(re.sub(r"^(-?)\.", r"\g<1>0.", text))  # .1 is a number, too
    return assigned or None
