"""The report of a conversion: every key, what was carried over, and the agreement with the original."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Accounting:
    """What became of each weight of the source."""

    used: list[str]
    dropped: dict[str, str]
    """Its name -> why."""
    new: list[str]
    """Weights of the result, under our names, that the source doesn't have: they start at random."""


@dataclass
class Agreement:
    """Agreement of a model with the original on texts that the conversion didn't train on.

    Attributes:
        texts: what they were.
        sequences: how many.
        tokens: real tokens in all of them.
        cosine: mean over texts of the cosine of the mean-pooled last hidden states.
        cosine_min: the least of them.
        hidden_mse: mean squared difference of the last hidden states at real tokens.
        hidden_max: the largest absolute difference of them.
        logits_max: the largest absolute difference of the head's logits, where there is a head with trained weights.
        perplexity: of masked tokens, for a masked-LM head; each token counts once.
        perplexity_original: the original's on the same masks.
        order_r2: R^2 between the change that swapping two neighbouring tokens makes in the original's hidden states and
            in ours. 1: the same; 0: as in a model that ignores order. None: not measured, nothing could be swapped, or
            the original ignores order.
    """

    texts: str
    sequences: int
    tokens: int
    cosine: float
    cosine_min: float
    hidden_mse: float
    hidden_max: float
    logits_max: float | None = None
    perplexity: float | None = None
    perplexity_original: float | None = None
    order_r2: float | None = None

    def __str__(self) -> str:
        """The numbers that were measured, in a line."""
        text = f"cosine {self.cosine:.4f}, hidden MSE {self.hidden_mse:.3g}, at most {self.hidden_max:.3g} off"
        if self.order_r2 is not None:
            text += f", R2 of swapped tokens {self.order_r2:.3f}"
        if self.logits_max is not None:
            text += f", logits {self.logits_max:.3g}"
        if self.perplexity is not None:
            text += f", masked-LM perplexity {self.perplexity:.4g}"
            if self.perplexity_original is not None:
                text += f" ({self.perplexity_original:.4g})"
        return f"{text} ({self.sequences} texts: {self.texts})"


@dataclass(repr=False)
class ConversionReport:
    """What `convert` did, and what was measured; also in `conversion.json` in the folder that it writes.

    Attributes:
        source: what was converted.
        source_sha256: of its weights and their names, to tell whether two conversions started from the same weights.
        family: its `model_type`.
        task: what the result is for; see `TASKS`.
        from_scheme, to_scheme: the positional schemes.
        max_position_embeddings: of the result.
        keys: what became of each weight.
        carried: what the new scheme took over from the old one, one line each, with the R^2 of the fit.
        tokenizer: what there is to say of it: its ids differ from the source's, or aren't checked, or it is missing.
        notes: other remarks.
        exact: agreement with the source in transformers' own class, for sources that aren't ours. None: not measured.
        before: agreement of the result with the original before healing. None: nothing was swapped.
        healing: how it was healed. None: it wasn't.
        after: agreement after healing.
    """

    source: str
    family: str
    task: str
    from_scheme: str
    to_scheme: str
    max_position_embeddings: int
    keys: Accounting
    source_sha256: str = ""
    carried: list[dict[str, Any]] = field(default_factory=list)
    tokenizer: str = ""
    notes: list[str] = field(default_factory=list)
    exact: Agreement | None = None
    before: Agreement | None = None
    healing: dict[str, Any] | None = None
    after: Agreement | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def sentence(self) -> str:
        """What was kept, in a few words."""
        if self.before is None:
            text = f"Converted {self.source}, positions {self.to_scheme} as they were"
            if self.exact is None:
                return f"{text}."
            return f"{text}: hidden states differ from the original's by at most {self.exact.hidden_max:.2g}."
        order = self.before.order_r2
        text = (
            f"Converted {self.source} from {self.from_scheme} to {self.to_scheme}: text embeddings keep a cosine of "
            f"{self.before.cosine:.3f} with the original's"
        )
        if order is not None and order < 0.5:
            return (
                f"{text}, but what it knew of word order is lost (R² {order:.2f}) and has to be learned again. "
                "`hf-posenc convert --heal TEXT` restores it first."
            )
        return f"{text}." if order is None else f"{text}, and what it knew of word order with an R² of {order:.2f}."

    def _rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know, line by line: a name and a text."""
        yield "model", f"{self.family} -> PosEnc, {self.task}"
        yield "keys", f"{len(self.keys.used)} used, {len(self.keys.dropped)} dropped"
        yield from (("", f"{name}: {reason}") for name, reason in self.keys.dropped.items())
        if self.keys.new:
            yield "new, untrained", ", ".join(self.keys.new)
        yield from (("carried over", _pairs(line)) for line in self.carried)
        if self.tokenizer:
            yield "tokenizer", self.tokenizer
        yield from (("note", note) for note in self.notes)
        if self.healing is not None:
            yield "healing", _pairs(self.healing)
        for name, agreement in (
            ("as converted, against transformers' own", self.exact),
            ("before healing, against the original", self.before),
            ("after healing, against the original", self.after),
        ):
            if agreement is not None:
                yield name, str(agreement)

    def __repr__(self) -> str:
        """The same lines as the table; `to_dict` has all values."""
        lines = (f"  {name}: {text}" if name else f"    {text}" for name, text in self._rows())
        return "\n".join([f"ConversionReport {self._title()}", *lines])

    def __rich__(self) -> Any:
        """A table for the terminal."""
        from rich.table import Table

        table = Table(title=self._title(), show_header=False)
        for row in self._rows():
            table.add_row(*row)
        return table

    def _title(self) -> str:
        return f"{self.source}: {self.from_scheme} -> {self.to_scheme}"


def _pairs(values: dict[str, Any]) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in given.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
