"""Generated tasks: order probes, which a bag of words can't solve, and one control, which it solves.

Each probe asks one yes-or-no question. Examples come in pairs that hold the same words and are equally long; the answer
is yes for one and no for the other. A model that doesn't see order gives both the same answer and is right in exactly
one half, whatever it has learned.

| probe | question | positional knowledge |
|---|---|---|
| `order` | does A stand before B? | direction |
| `ends` | is the last word the first one again? | absolute: the start; the end, beside [SEP] |
| `place` | does A (and not B) stand at the position that the query names? | absolute |
| `distance` | are A and B at most 4 words apart (and not 8 or more)? | relative |
| `swap` | do the neighbours A and B, all of them, stand as B A? | direction, of neighbouring places |
| `parity` | does A stand at an even position? | absolute |
| `brackets` | are two kinds of brackets well nested? | direction, nesting |

[CLS] stands at position 0, so a scheme that sees distances alone sees positions too, as distances to it. A scheme that
doesn't tell left from right (a symmetric bias) tells it by the same way around.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from hf_posenc.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LABELS = ("no", "yes")
SHORTEST = 32
"""Tokens of the shortest input: every place that a query names lies in it."""

_FILLERS = tuple(f"f{number}" for number in range(16))
_HALVES = tuple(f"{half}{number}" for half in "uv" for number in range(16))
_PLACES = (4, 8, 16, 24)
_NEAR, _FAR, _FURTHEST = 4, 8, 12
_ENDS = 2
_DEEPEST = 4
_CLOSING = {"(": ")", "[": "]"}
_QUERIES = tuple(f"#{place}" for place in _PLACES)

Words = list[str]
Pair = tuple[Words, Words]
"""The words of an example whose answer is yes, and the same in an order that makes it no."""


@dataclass(frozen=True)
class Probe:
    """One question about order."""

    name: str
    question: str
    needs: tuple[str, ...]
    """The positional knowledge that it needs: `absolute`, `relative` (distances), `direction`, `nesting`."""
    make: Callable[[random.Random, int], Pair]
    """Draws a pair with so many words, the probe's own token not counted."""

    @property
    def token(self) -> str:
        """The word that tells the model which question is asked; the first after [CLS]."""
        return f"<{self.name}>"


def _fill(draw: random.Random, count: int) -> Words:
    return draw.choices(_FILLERS, k=count)


def _exchanged(words: Words, first: int, second: int) -> Words:
    changed = list(words)
    changed[first], changed[second] = words[second], words[first]
    return changed


def _order(draw: random.Random, count: int) -> Pair:
    words = _fill(draw, count)
    first, second = sorted(draw.sample(range(count), 2))
    words[first], words[second] = "A", "B"
    return words, _exchanged(words, first, second)


def _ends(draw: random.Random, count: int) -> Pair:
    words = draw.choices(_FILLERS[_ENDS:], k=count)
    same, other = draw.sample(_FILLERS[:_ENDS], 2)
    words[0] = words[-1] = same
    inside = draw.randrange(1, count - 1)
    words[inside] = other
    return words, _exchanged(words, draw.choice((0, count - 1)), inside)


def _place(draw: random.Random, count: int) -> Pair:
    place = draw.choice(_PLACES)
    words = [f"#{place}", *_fill(draw, count - 1)]
    chosen = place - 2  # [CLS] and the probe's token stand before the words
    near = [chosen + step for step in (-3, -2, -1, 1, 2, 3)]
    other = draw.choice([index for index in (near if draw.random() < 0.5 else range(count)) if 0 < index < count])
    while other == chosen:
        other = draw.randrange(1, count)
    words[chosen], words[other] = "A", "B"
    return words, _exchanged(words, chosen, other)


def _distance(draw: random.Random, count: int) -> Pair:
    near, far = draw.randint(1, _NEAR), draw.randint(_FAR, _FURTHEST)
    # Both pairs have one middle: the place of either mark alone says little.
    start = draw.randrange(count - far)
    filler = _fill(draw, count - 2)
    first, second = draw.sample("AB", 2)

    def at(distance: int) -> Words:
        left = start + (far - distance) // 2
        marks = {left: first, left + distance: second}
        rest = iter(filler)
        return [marks[index] if index in marks else next(rest) for index in range(count)]

    return at(near), at(far)


def _swap(draw: random.Random, count: int) -> Pair:
    words = _fill(draw, count)
    pairs = max(1, count // 16)
    swapped = list(words)
    for index, start in enumerate(sorted(draw.sample(range(count - pairs), pairs))):
        first = start + index  # pairs don't overlap
        words[first : first + 2] = "A", "B"
        swapped[first : first + 2] = "B", "A"
    return swapped, words


def _parity(draw: random.Random, count: int) -> Pair:
    words = _fill(draw, count)
    even = draw.randrange(0, count - 1, 2)  # two tokens before the words: their evens are the input's
    odd = draw.choice([index for index in (even - 1, even + 1) if index >= 0])
    words[even] = "A"
    return words, _exchanged(words, even, odd)


def _brackets(draw: random.Random, count: int) -> Pair:
    words: Words = []
    pending: Words = []
    length = max(4, count // 8 * 2)
    while len(words) < length:
        may_open = len(pending) < min(_DEEPEST, length - len(words))
        if may_open and (not pending or draw.random() < 0.5):
            words.append(draw.choice("(["))
            pending.append(_CLOSING[words[-1]])
        else:
            words.append(pending.pop())
    while True:
        broken = _exchanged(words, *draw.sample(range(length), 2))
        if not well_nested(broken):
            filler = _fill(draw, count)
            places = sorted(draw.sample(range(count), length))
            return _put(filler, places, words), _put(filler, places, broken)


def _put(filler: Words, places: Sequence[int], words: Words) -> Words:
    filled = list(filler)
    for place, word in zip(places, words, strict=True):
        filled[place] = word
    return filled


def well_nested(words: Sequence[str]) -> bool:
    """Whether each bracket is closed by its own kind, the innermost first; other words don't count."""
    pending = []
    for word in words:
        if word in _CLOSING:
            pending.append(_CLOSING[word])
        elif word in _CLOSING.values() and (not pending or pending.pop() != word):
            return False
    return not pending


PROBES: dict[str, Probe] = {
    probe.name: probe
    for probe in (
        Probe("order", "Does A stand before B?", ("direction",), _order),
        Probe("ends", "Is the last word the first one again?", ("absolute",), _ends),
        Probe("place", "Does A (and not B) stand at the named position?", ("absolute",), _place),
        Probe("distance", "Are A and B at most 4 words apart, not 8 or more?", ("relative",), _distance),
        Probe("swap", "Do the neighbours A and B stand as B A?", ("direction",), _swap),
        Probe("parity", "Does A stand at an even position?", ("absolute",), _parity),
        Probe("brackets", "Are the brackets well nested?", ("direction", "nesting"), _brackets),
    )
}
"""The probes by name."""


def make_probes(
    pairs: int, lengths: tuple[int, int], seed: int, names: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Draws examples: `text`, `label` (yes or no), `probe`, `group` (the pair's number), all in a random order.

    Args:
        pairs: pairs of each probe.
        lengths: the shortest and the longest input in tokens, [CLS], the probe's token and [SEP] included; each pair's
            length is drawn evenly from there.
        seed: the same seed draws the same examples.
        names: of `PROBES`; None: all.

    Raises:
        UserError: a probe is unknown, or a number is out of range.
    """
    for name in names or ():
        if name not in PROBES:
            raise UserError(f"The probe {name!r} is unknown. Choose from {', '.join(PROBES)}.")
    shortest, longest = lengths
    if not SHORTEST <= shortest <= longest:
        raise UserError(
            f"Probes of {shortest} to {longest} tokens can't be made: they need {SHORTEST} tokens or more, so that "
            "every place that is asked for is in the input."
        )
    if pairs < 1:
        raise UserError(f"pairs={pairs} must be 1 or more.")
    draw = random.Random(seed)
    rows = []
    for index in range(pairs):
        for probe in map(PROBES.__getitem__, names or PROBES):
            yes, no = probe.make(draw, draw.randint(shortest, longest) - 3)
            group = f"{probe.name}-{index}"
            for label, words in (("yes", yes), ("no", no)):
                text = " ".join([probe.token, *words])
                rows.append({"text": text, "label": label, "probe": probe.name, "group": group})
    draw.shuffle(rows)
    yield from rows


def make_halves(examples: int, lengths: tuple[int, int], seed: int) -> Iterator[dict[str, Any]]:
    """The control: are most words of the vocabulary's first half? Counting words answers it; order says nothing.

    Args:
        examples: how many, half of them yes.
        lengths: the shortest and the longest input in tokens, [CLS] and [SEP] included.
        seed: the same seed draws the same examples.

    Raises:
        UserError: a number is out of range.
    """
    shortest, longest = lengths
    if not 8 <= shortest <= longest or examples < 2:
        raise UserError(
            f"The control with {examples} examples of {shortest} to {longest} tokens can't be made: give 2 examples or "
            "more, and 8 tokens or more."
        )
    draw = random.Random(seed)
    half = len(_HALVES) // 2
    rows = []
    for index in range(examples):
        count = draw.randint(shortest, longest) - 2
        most = draw.randint(count * 6 // 10 + 1, count)
        sides = (_HALVES[:half], _HALVES[half:]) if index % 2 else (_HALVES[half:], _HALVES[:half])
        words = draw.choices(sides[0], k=most) + draw.choices(sides[1], k=count - most)
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": LABELS[index % 2]})
    draw.shuffle(rows)
    yield from rows


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """The tokenizer of the generated tasks: one token per word."""
    from transformers import PreTrainedTokenizerFast  # here: a plan is checked before PyTorch is imported

    from hf_posenc.data.tokenizer import SPECIAL_TOKENS

    words = [
        *SPECIAL_TOKENS.values(),
        *(probe.token for probe in PROBES.values()),
        *_QUERIES,
        *("A", "B", *_CLOSING, *_CLOSING.values()),
        *_FILLERS,
        *_HALVES,
    ]
    numbers = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(numbers, unk_token=SPECIAL_TOKENS["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(token, numbers[token]) for token in (cls, sep)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **SPECIAL_TOKENS
    )
