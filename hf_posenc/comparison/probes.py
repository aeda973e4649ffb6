"""Generated tasks: order probes, which no linear model solves, and one control, which counting words solves.

Each probe asks a yes-or-no question about the letters A and B among fillers. Examples come in pairs that hold the same
words and are equally long; the answer is yes for one and no for the other. A model that doesn't see order gives both
the same answer and is right in exactly one half, whatever it has learned.

Each question has a usual form and its opposite. Training asks the usual form in 85 % of the pairs, tests ask both
equally often. A model that ignores which form is asked is right in one half of a test; one that answers the usual form
and says no to the opposite is right in three quarters. More takes both, the question and the order. (Asked equally
often in training, the two forms give a model nothing to begin with.)

| probe | usual form | opposite | positional knowledge |
|---|---|---|---|
| `order_near` | `?A`: is A before B? They are 1 to 3 places apart | `?B`: is B before A? | direction |
| `order_far` | `?A`: the same, 6 to 10 places apart | `?B` | direction |
| `distance_coarse` | `?near`: are A and B 2 to 4 places apart? | `?far`: are they 8 to 12 apart? | relative |
| `distance_fine` | `?near`: are A and B 3 or 4 places apart? | `?far`: are they 6 or 7 apart? | relative |
| `place` | `#12`: is A at position 12? The other letter stands beside it | `!12`: is B there? | absolute |
| `parity` | `?even`: is A at an even position? B stands beside it | `?odd`: is A at an odd one? | absolute |

[CLS] stands at position 0, so a scheme that sees distances alone sees positions too, as distances to it. In the same
way a symmetric bias can tell left from right.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

LABELS = ("no", "yes")
SHORTEST = 32
"""Tokens of the shortest input: every place that a query names lies in it."""

USUAL = 0.85
"""The share of training pairs that are asked the usual form of their question."""

_FILLERS = tuple(f"f{number}" for number in range(16))
_HALVES = tuple(f"{half}{number}" for half in "uv" for number in range(16))
_PLACES = (7, 12, 18, 25)
_ASKED = 2
"""Words of a query, with the bar after it."""
_FIRST = _ASKED + 3
"""The first position at which a letter may stand: after [CLS], the probe's word, the query, and one filler, so that no
query has a letter in its neighbourhood."""
_USUALS = ("?A", "?near", "?even", *(f"#{place}" for place in _PLACES))
OPPOSITES = frozenset({"?B", "?far", "?odd", *(f"!{place}" for place in _PLACES)})
"""Queries of the opposite forms; the second word of a text."""

Words = list[str]
Pair = tuple[Words, Words]
"""The words of an example whose answer is yes, and the same in an order that makes it no."""


def _pair(draw: random.Random, query: str, positions: tuple[int, int], count: int) -> Pair:
    """A query and fillers, with A and B at these positions of the input, and the same with A and B exchanged."""
    words = [query, "|", *draw.choices(_FILLERS, k=count - _ASKED)]
    exchanged = list(words)
    first, second = (position - 2 for position in positions)  # [CLS] and the probe's word stand before the words
    words[first], words[second] = "A", "B"
    exchanged[first], exchanged[second] = "B", "A"
    return words, exchanged


def _order(draw: random.Random, count: int, usual: bool, apart: Sequence[int]) -> Pair:
    distance = draw.choice(apart)
    first = draw.randrange(_FIRST, count + 2 - distance)
    positions = (first, first + distance)
    return _pair(draw, "?A" if usual else "?B", positions if usual else positions[::-1], count)


def _distance(draw: random.Random, count: int, usual: bool, near: Sequence[int], far: Sequence[int]) -> Pair:
    nearer, farther = draw.choice(near), draw.choice(far)
    # Both have one middle, and it is drawn from the same places for all distances: where letters stand says little.
    start = draw.randrange(_FIRST, count + 2 - max(far)) + (max(far) - farther) // 2
    filler = draw.choices(_FILLERS, k=count - _ASKED - 2)
    first, second = draw.sample("AB", 2)

    def at(distance: int) -> Words:
        left = start - 2 + (farther - distance) // 2
        words = ["?near" if usual else "?far", "|", *filler]
        words.insert(left, first)
        words.insert(left + distance, second)
        return words

    return (at(nearer), at(farther)) if usual else (at(farther), at(nearer))


def _place_question(draw: random.Random, count: int, usual: bool) -> Pair:
    place = draw.choice(_PLACES)
    other = place + draw.choice((-1, 1))  # so that which letter is first says nothing
    return _pair(draw, f"{'#' if usual else '!'}{place}", (place, other) if usual else (other, place), count)


def _parity(draw: random.Random, count: int, usual: bool) -> Pair:
    first = draw.randrange(_FIRST, count + 1)
    even, odd = sorted((first, first + 1), key=lambda position: position % 2)
    return _pair(draw, "?even" if usual else "?odd", (even, odd) if usual else (odd, even), count)


PROBES: dict[str, Callable[[random.Random, int, bool], Pair]] = {
    "order_near": partial(_order, apart=(1, 2, 3)),
    "order_far": partial(_order, apart=(6, 7, 8, 9, 10)),
    "distance_coarse": partial(_distance, near=(2, 3, 4), far=(8, 9, 10, 11, 12)),
    "distance_fine": partial(_distance, near=(3, 4), far=(6, 7)),
    "place": _place_question,
    "parity": _parity,
}
"""What draws a pair of each probe: with so many words, its own token not counted, in the usual form or the opposite."""
VOCABULARY = (
    *(f"<{probe}>" for probe in PROBES),
    *_USUALS,
    *sorted(OPPOSITES),
    *("|", "A", "B", *_FILLERS, *_HALVES),
)
"""The words of all generated texts."""


def make_probes(
    pairs: int, lengths: tuple[int, int], seed: int, names: Sequence[str] | None = None, training: bool = False
) -> list[dict[str, Any]]:
    """Draws examples: `text`, `label` (yes or no), `group` (the pair's number), all in a random order.

    Args:
        pairs: pairs of each probe.
        lengths: the shortest input, of 32 tokens or more, and the longest, [CLS], the probe's token and [SEP] included;
            each pair's length is drawn evenly from there.
        seed: the same seed draws the same examples.
        names: of `PROBES`; None: all.
        training: ask mostly (`USUAL`) for the usual form of a question, not for both equally often.
    """
    shortest, longest = lengths
    draw = random.Random(seed)
    rows = []
    for index in range(pairs):
        for name in names or PROBES:
            usual = draw.random() < USUAL if training else bool(index % 2)
            yes, no = PROBES[name](draw, draw.randint(shortest, longest) - 3, usual)
            for label, words in (("yes", yes), ("no", no)):
                text = " ".join([f"<{name}>", *words])
                rows.append({"text": text, "label": label, "group": f"{name}-{index}"})
    draw.shuffle(rows)
    return rows


def make_halves(examples: int, lengths: tuple[int, int], seed: int) -> list[dict[str, Any]]:
    """The control: are most words of the vocabulary's first half? Counting words answers it; order says nothing.

    Args:
        examples: how many, half of them yes.
        lengths: the shortest and the longest input in tokens, [CLS] and [SEP] included.
        seed: the same seed draws the same examples.
    """
    shortest, longest = lengths
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
    return rows
