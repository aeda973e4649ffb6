"""The report of a conversion: every key, what was carried over, and how far the result is from the original."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..markdown import markdown_table


@dataclass(frozen=True)
class Accounting:
    """Account of each weight of the source."""

    used: list[str]
    dropped: dict[str, str]
    """Its name -> why."""
    new: list[str]
    """Weights of the result, under our names, that the source doesn't have: they start at random."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of a model with the original on texts that the conversion didn't train on.

    Attributes:
        texts: what they were.
        sequences: how many.
        tokens: real tokens in all of them.
        distance: sqrt(sum |h' - h|^2 / sum |h|^2) of the last hidden states at real tokens, h the original's.
        hidden_max: the largest absolute difference of them.
        cosine: mean over texts of the cosine of the mean-pooled last hidden states.
        order_r2: R^2 between the change that swapping two neighbouring tokens makes in the original's hidden states and
            in ours. 1: the same; 0: as in a model that ignores order. None: not measured, nothing could be swapped, or
            the original ignores order.
        logits_max: the largest absolute difference of the head's logits, where there is a head with trained weights.
    """

    texts: str
    sequences: int
    tokens: int
    distance: float | None = None
    hidden_max: float = 0.0
    cosine: float | None = None
    order_r2: float | None = None
    logits_max: float | None = None


@dataclass(frozen=True, repr=False)
class ConversionReport:
    """Report of `convert`: what it did, and what was measured; also in `conversion.json` in the folder that it writes.

    Attributes:
        source: what was converted.
        family: its `model_type`.
        head: of the result, by the name of its task.
        from_scheme, to_scheme: the positional schemes.
        swapped: whether the scheme or its arguments are others, the length aside.
        max_position_embeddings: of the result.
        keys: what became of each weight.
        trained_length: how long the texts were that it was trained on, where the result is extended past them.
        carried: what the new scheme took over from the old one, one line each, with the R^2 of the fit.
        tokenizer: what there is to say of it: its ids differ from the source's, or aren't checked, or it is missing.
        notes: other remarks.
        exact: agreement with the source in transformers' own class, for sources that aren't ours. None: not measured.
        before: agreement of the result with the original before healing. None: nothing was swapped.
        healing: how it was healed. None: it wasn't.
        after: agreement after healing.
        extended: agreement after what was healed was extended.
    """

    source: str
    family: str
    head: str
    from_scheme: str
    to_scheme: str
    swapped: bool
    max_position_embeddings: int
    keys: Accounting
    trained_length: int | None = None
    carried: list[dict[str, Any]] = field(default_factory=list)
    tokenizer: str = ""
    notes: list[str] = field(default_factory=list)
    exact: Agreement | None = None
    before: Agreement | None = None
    healing: dict[str, Any] | None = None
    after: Agreement | None = None
    extended: Agreement | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def sentence(self, *, advises: bool = True) -> str:
        """Says in words what it costs, and perhaps what would bring that down."""
        change = f", {self.to_scheme} {'with other arguments' if self.swapped else 'as it was'}"
        if self.from_scheme != self.to_scheme:
            change = f" from {self.from_scheme} to {self.to_scheme}"
        text, last = f"Converted {self.source}{change}", self.extended or self.after or self.before
        advice = ", and healing on text of yours brings them nearer" * (advises and self.swapped)
        if last is None:
            most = "" if self.exact is None else f": hidden states differ by at most {self.exact.hidden_max:.1g}"
            return f"{text}{most or advice.replace('them', 'it')}."
        text = f"{text}: hidden states differ by {_percent(last)} from the original"
        if self.healing is None:
            return f"{text}{advice}."
        extended = "" if self.extended is None else f", {_percent(self.after)} before it was extended"
        return f"{text}, {_percent(self.before)} without healing{extended}."

    def __repr__(self) -> str:
        """Shows in words what it costs, then the table, then what there is to know; `to_dict` has all values."""
        shown = self.table()
        table = ["", shown, ""] if shown else []
        return "\n".join([self.sentence(), *table, *(f"{name}: {text}" for name, text in self.lines())])

    def table(self) -> str:
        """The agreement with the original after each step, in Markdown; empty: nothing was measured."""
        swapped = "swapped" if self.swapped else "changed"
        measured = {swapped: self.before, "healed": self.after, "extended": self.extended}
        rows = [
            (
                name,
                _percent(value),
                f"{value.cosine:.3f}",
                "" if value.order_r2 is None else f"{round(value.order_r2, 2) + 0.0:.2f}",
            )
            for name, value in measured.items()
            if value is not None
        ]
        head = ("", "hidden states differ by", "cosine of embeddings", "order kept (1 is all)")
        return markdown_table(head, rows) if rows else ""

    def lines(self) -> Iterator[tuple[str, str]]:
        """All else that there is to know: a title and a text each."""
        yield "model", f"{self.family} to PosEnc, for {self.head}, {self.max_position_embeddings:,} positions"
        yield "weights", f"{len(self.keys.used)} used, {len(self.keys.dropped)} left out"
        for reason in dict.fromkeys(self.keys.dropped.values()):
            yield "left out", f"{', '.join(name for name, why in self.keys.dropped.items() if why == reason)}: {reason}"
        if self.keys.new:
            yield "new, untrained", ", ".join(self.keys.new)
        yield from (("carried over", _pairs(line)) for line in self.carried)
        if self.healing is not None:
            yield "healing", _pairs(self.healing)
        if agreement := self.extended or self.after or self.before or self.exact:
            yield "measured on", f"{agreement.sequences} texts ({agreement.tokens:,} tokens): {agreement.texts}"
        if self.tokenizer:
            yield "tokenizer", self.tokenizer
        yield from (("note", note) for note in self.notes)


@dataclass(frozen=True)
class Conversion:
    """Result of `convert`; shown, it is its report.

    Attributes:
        model: in evaluation mode.
        tokenizer: the source's. None: it has none.
        report: what was done, and how far the model is from the source.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    report: ConversionReport

    def __repr__(self) -> str:
        return repr(self.report)


def _percent(agreement: Any) -> str:
    """The distance of an `Agreement` in words."""
    return f"{100 * agreement.distance:{'.2g' if agreement.distance < 0.995 else '.0f'}} %"


def _pairs(values: dict[str, Any]) -> str:
    """Values with their names, without those of a scheme and of what was carried over."""
    given = {name: value for name, value in values.items() if value is not None}
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in given.items()}
    return ", ".join(f"{value}" if name in ("scheme", "what") else f"{name} {value}" for name, value in shown.items())
