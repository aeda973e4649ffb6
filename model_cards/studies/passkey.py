"""Whether a lengthened model still finds one sentence in a long text: passkeys, with all-MiniLM-L6-v2 as converted.

    python -m model_cards.studies.passkey --data FOLDER --minilm FOLDER --output runs/passkey.json --work runs/passkey
    python -m model_cards.studies.passkey --table

As in LongEmbed (Zhu et al. 2024, arXiv 2404.12096): each of 50 texts repeats the same few sentences, and somewhere it
states the passkey of one person. A query asks for one person's passkey, and the text whose embedding has the highest
cosine with the query's is the answer. Embeddings are means over tokens, as all-MiniLM-L6-v2 has them. Nothing is
fine-tuned; chance is 1 in 50. The places of the passkeys are evenly spread over the texts.

`rope` is healed with three seeds. `heal/rope` is how well the first agrees with the original, and which weights it has:
no others may be measured beside it. `WAY/LENGTH/SEED` is which queries found their text; `heal/rope, healing 1` and
`WAY, healing 1/LENGTH/SEED` are those of the second. `PLANNED` are all comparisons that are tested. Each part is
written as it ends; a study that was stopped goes on with the next one.
"""

import argparse
import functools
import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.stats import binomtest
from torch.nn.functional import normalize
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_posenc.checkpoints.tokenizers import open_tokenizer
from hf_posenc.comparison.statistics import Interval
from hf_posenc.conversion import Healing, convert
from hf_posenc.errors import UserError, run_script
from hf_posenc.files import sha256
from hf_posenc.markdown import markdown_table
from model_cards.studies.parts import (
    NAME,
    Parts,
    data_folder,
    direction,
    find_minilm,
    options_of,
    paired_interval,
    read_rows,
    run_study,
    signed,
)

TRAINED = 512
"""Positions of all-MiniLM-L6-v2. It was trained on texts of 128 tokens, and as published cuts them at 256."""
LENGTHS, LONGER = (256, 512, 1024, 2048, 4096), (1024, 2048, 4096)
"""Tokens of the texts, and those that are more than in training."""
SEEDS = range(3, 6)
"""Of the texts, at each length: others than those, 0 to 2, by whose scores `TESTED` was chosen."""
TEXTS = 50
FILLER = (
    "The meadow is quiet. A cloud drifts by. The river runs slowly. Evening comes early. Nothing else happens here."
)
FIRST = ("Ada", "Bruno", "Clara", "David", "Elena", "Frank", "Grace", "Hugo", "Irene", "Jonas", "Karen", "Louis")
LAST = ("Adams", "Brown", "Carter", "Davis", "Evans", "Foster", "Green", "Hughes", "Irving", "Jones", "King", "Lewis")


@dataclass(frozen=True)
class Way:
    """One way to read a text longer than in training.

    Attributes:
        source: `learned` (as converted), `rope` (its positions swapped), or `healed` (that, and healed).
        extension: of `convert`, to the length of the texts. None: as it is.
        windows: how texts are cut: the `first` tokens alone, the `mean` over all windows, or the `best` of them. None:
            not at all.
        size: tokens of a window, at most.
        stride: how many tokens each begins after the one before.
        lengths: of the texts that are measured.
    """

    source: str
    extension: str | None = None
    windows: str | None = None
    size: int = TRAINED
    stride: int = TRAINED
    lengths: tuple[int, ...] = LONGER


def window_ways(source: str, prefix: str = "") -> dict[str, Way]:
    """Windows of a model that begin half of what they hold apart, as those of `predict`, small ones a quarter too."""
    shapes = [(size, share, how) for size in (512, 256, 128) for share, how in ((2, "mean"), (2, "best"), (4, "best"))]
    ways = {}
    for size, share, how in shapes:
        stride = (size - 2) // share
        if share == 2 or size <= 256:
            name = f"{prefix}windows of {size} by {stride}, {how}"
            ways[name] = Way(source, windows=how, size=size, stride=stride)
    return ways


WAYS = {
    "first 512 tokens": Way("learned", windows="first", lengths=LENGTHS),
    **window_ways("learned"),
    "learned-tile": Way("learned", "tile"),
    "learned-interpolate": Way("learned", "interpolate"),
    "rope-unhealed": Way("rope", lengths=(256, 512)),
    "rope-default": Way("healed", lengths=LENGTHS),
    **window_ways("healed", "healed, "),
    "rope-linear": Way("healed", "linear"),
    "rope-dynamic": Way("healed", "dynamic"),
    "rope-yarn": Way("healed", "yarn"),
}
TESTED = "rope-dynamic"
RIVALS = [*window_ways("learned"), "learned-tile", "learned-interpolate", *window_ways("healed", "healed, ")]
PLANNED = [*itertools.product(RIVALS, LONGER)]
"""What `TESTED` is compared with, and where."""

SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    TESTED: ("rope, healed, dynamic:\none vector", {"marker": "o", "color": "tab:blue"}),
    "healed, windows of 256 by 63, best": (
        "rope, healed:\nbest window of 256",
        {"marker": "o", "color": "tab:blue", "linestyle": "--"},
    ),
    "windows of 256 by 63, best": ("best window of 256", {"marker": "s", "color": "tab:orange", "linestyle": "--"}),
    "windows of 512 by 255, mean": ("mean over windows\nof 512", {"marker": "D", "color": "tab:red"}),
    "healed, windows of 128 by 63, mean": (
        "rope, healed: mean\nover windows of 128",
        {"marker": "P", "color": "tab:blue", "linestyle": ":"},
    ),
    "windows of 128 by 63, mean": ("mean over windows\nof 128", {"marker": "P", "color": "tab:purple"}),
    "learned-tile": ("its table repeated", {"marker": "^", "color": "tab:green"}),
    "first 512 tokens": ("cut at 512 tokens", {"marker": "v", "color": "0.35"}),
}
"""The ways in the figure, and how each looks."""


def passkeys(tokenizer: Any, length: int, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Queries, and the texts that answer them, as token ids with [CLS] and [SEP]; each text has `length` tokens."""
    draw = random.Random(f"{length}/{seed}")
    people = [f"{first} {last}" for first in FIRST for last in LAST]
    filler, end = _ids(tokenizer, FILLER) * length, _ids(tokenizer, ".")[0]
    queries, texts = [], []
    for number, person in enumerate(draw.sample(people, TEXTS)):
        key = draw.randrange(10000, 100000)
        told = _ids(tokenizer, f"The passkey of {person} is {key}. Remember it: {person} has passkey {key}.")
        around = filler[: length - 2 - len(told)]
        starts = [0, *(place for place in range(1, len(around)) if around[place - 1] == end)]
        start = starts[round(number / (TEXTS - 1) * (len(starts) - 1))]
        body = around[:start] + told + around[start:]
        texts.append(_framed(tokenizer, body))
        queries.append(tokenizer(f"What is the passkey of {person}?")["input_ids"])
    return queries, texts


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _framed(tokenizer: Any, ids: list[int]) -> list[int]:
    return [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]


def windows(tokenizer: Any, ids: list[int], size: int, stride: int) -> list[list[int]]:
    """A text in windows as `hf_posenc.inference` has them: the last one ends with the text."""
    inner, room = ids[1:-1], size - 2
    last = max(0, len(inner) - room)
    return [_framed(tokenizer, inner[start : start + room]) for start in (*range(0, last, stride), last)]


class Study:
    """The parts, and where their results are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.source, self.options = find_minilm(options.minilm), options
        self.work, self.parts = Path(options.work), Parts(options)
        self.tokenizer = open_tokenizer(str(self.source))
        self.tokenizer.model_max_length = max(LENGTHS)
        self.known: dict[tuple[Any, ...], torch.Tensor] = {}

    def run(self) -> None:
        """All parts, the first healing's and the short texts' first."""
        healings = range(self.options.healings)
        folders = {healing: self.work / healed("rope", healing) for healing in healings}
        for healing in healings:
            name = healed("heal/rope", healing)
            if name in self.parts.read()["parts"]:
                check_healed(self.parts, name, folders[healing])
            heal = functools.partial(heal_rope, self.source, folders[healing], data_folder(self.options), healing)
            self.parts.measure(name, heal, seeds=[*SEEDS])
        self.parts.wait()
        parts = [
            (name, length, seed, healing)
            for healing in healings
            for length, seed in itertools.product(LENGTHS, SEEDS)
            for name, way in WAYS.items()
            if length in way.lengths and (way.source == "healed" or healing == 0)
        ]
        for name, length, seed, healing in tqdm(parts, unit="part"):
            find = functools.partial(self.find, WAYS[name], length, seed, healing)
            self.parts.measure(f"{healed(name, healing)}/{length}/{seed}", find, seeds=[*SEEDS])

    def find(self, way: Way, length: int, seed: int, healing: int = 0) -> dict[str, Any]:
        """Which queries find their text, in order of its passkey's place: a 1 or 0 for each."""
        model = self.model(way.source, way.extension, length if way.extension else None, healing)
        queries, texts = passkeys(self.tokenizer, length, seed)
        asked = normalize(torch.stack([token_sum(model, query) for query in queries]), dim=-1)
        best = torch.stack([self._scores(model, way, asked, text, healing) for text in texts], -1).argmax(-1)
        return {"found": "".join(str(int(place == number)) for number, place in enumerate(best.tolist()))}

    def _scores(
        self, model: PreTrainedModel, way: Way, asked: torch.Tensor, text: list[int], healing: int = 0
    ) -> torch.Tensor:
        """How near each query is to a text: (queries,)."""
        if way.windows is None:
            sums = token_sum(model, text)[None]
        elif way.windows == "first":
            sums = token_sum(model, _framed(self.tokenizer, text[1:-1][: TRAINED - 2]))[None]
        else:
            cut = windows(self.tokenizer, text, way.size, way.stride)
            sums = torch.stack([self._known_sum(model, (way.source, healing), window) for window in cut])
        read = sums if way.windows == "best" else sums.sum(0, keepdim=True)
        return (asked @ normalize(read, dim=-1).T).amax(-1)

    def _known_sum(self, model: PreTrainedModel, of: tuple[str, int], window: list[int]) -> torch.Tensor:
        """The sum over a window's tokens. Most windows hold the repeated sentences alone, and are read once."""
        key = (*of, *window)
        if key not in self.known:
            self.known[key] = token_sum(model, window)
        return self.known[key]

    @functools.lru_cache(maxsize=1)  # noqa: B019  # one study per process
    def model(self, source: str, extension: str | None, longest: int | None, healing: int) -> PreTrainedModel:
        """The model of a way, extended to so many tokens where it is."""
        folder = self.source
        if source == "healed":
            folder = check_healed(self.parts, healed("heal/rope", healing), self.work / healed("rope", healing))
        options: dict[str, Any] = {"scheme": "rope"} if source == "rope" else {}
        if extension is not None:
            options |= {"extension": extension, "max_position_embeddings": longest}
        return convert(folder, head="feature-extraction", measure=False, seed=0, **options).model


def heal_rope(source: Path, folder: Path, data: Path, seed: int) -> dict[str, Any]:
    """Swaps `rope` in and heals it on film reviews of up to the trained length, half of them that long.

    The seed is of the order of texts, and of the tokens that are swapped.
    """
    texts = [row["text"] for split in ("train", "train_long") for row in read_rows(data, "imdb", split)[:1400]]
    measured_on = [row["text"] for split in ("test", "test_long") for row in read_rows(data, "imdb", split)[:100]]
    report = convert(
        source,
        folder,
        scheme="rope",
        head="feature-extraction",
        healing=Healing(texts, max_steps=200, batch_tokens=8 * TRAINED, bf16=True, swap_distance=1),
        eval_texts=measured_on,
        overwrite=True,
        seed=seed,
    ).report
    return {**report.to_dict(), "source": NAME, "weights_sha256": sha256(folder / "model.safetensors")}


def check_healed(parts: Parts, name: str, folder: Path) -> Path:
    """The folder of a healed model, which must be the one whose healing is written.

    Raises:
        UserError: it is another one, or isn't there.
    """
    written, weights = parts.read()["parts"].get(name, {}).get("weights_sha256"), folder / "model.safetensors"
    if written is None or not weights.is_file() or sha256(weights) != written:
        raise UserError(
            f"{str(folder)!r} doesn't hold the weights that {name!r} in {str(parts.output)!r} names, and others can't "
            "stand beside its parts. Give the --work that belongs to it, or begin anew with another --output and "
            "--work."
        )
    return folder


def healed(name: str, healing: int) -> str:
    """The name of a part or a way after one of several healings."""
    return f"{name}, healing {healing}" if healing else name


@torch.no_grad()
def token_sum(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """The sum over tokens, which points where their mean does: (D,)."""
    return model(torch.tensor([ids])).last_hidden_state[0].sum(0)


def answers(results: dict[str, Any], name: str, length: int) -> dict[int, str]:
    """Which queries found their text, by the seed of the texts."""
    found = {
        int(key.rpartition("/")[2]): part["found"]
        for key, part in results["parts"].items()
        if key.startswith(f"{name}/{length}/")
    }
    return dict(sorted(found.items()))


def by_healing(results: dict[str, Any], name: str, length: int) -> list[dict[int, str]]:
    """The same for each healing: of the original one, and none of what isn't measured."""
    is_healed = name in WAYS and WAYS[name].source == "healed"
    numbers = range(_healings(results) if is_healed else 1)
    return [found for number in numbers if (found := answers(results, healed(name, number), length))]


def _healings(results: dict[str, Any]) -> int:
    return max(1, sum(key.startswith("heal/rope") for key in results["parts"]))


def share(results: dict[str, Any], name: str, length: int) -> Interval | None:
    """The share of queries that find their text.

    With its 95 % interval (Wilson); of several healings the mean, from the least share to the largest. None: it isn't
    measured.
    """
    models = ["".join(found.values()) for found in by_healing(results, name, length)]
    shares = [found.count("1") / len(found) for found in models]
    if not models:
        return None
    if len(models) > 1:
        return Interval(fmean(shares), min(shares), max(shares))
    ends = binomtest(models[0].count("1"), len(models[0])).proportion_ci(method="wilson")
    return Interval(shares[0], ends.low, ends.high)


def table(results: dict[str, Any]) -> str:
    """The shares, by way and length."""
    rows = []
    for name in WAYS:
        cells = []
        for length in LENGTHS:
            found, several = share(results, name, length), len(by_healing(results, name, length)) > 1
            form = "{:.2f}, {:.2f} to {:.2f}" if several else "{:.2f} [{:.2f}, {:.2f}]"
            cells.append(form.format(found.mean, found.low, found.high) if found else "")
        rows += [(_shown(name), *cells)] * any(cells)
    return markdown_table(("", *(f"{length:,}" for length in LENGTHS)), rows)


def tests(results: dict[str, Any]) -> dict[tuple[str, int], Interval]:
    """How much more `TESTED` finds than each other way, on the same queries; of what is measured.

    The interval is that of `paired_interval` over the healings, for all that is planned.
    """
    made = {}
    for rival, length in PLANNED:
        pairs = []
        for healing in range(_healings(results)):
            first = answers(results, healed(TESTED, healing), length)
            second = answers(results, healed(rival, healing if WAYS[rival].source == "healed" else 0), length)
            seeds = sorted(first.keys() & second.keys())
            if seeds:
                pairs.append(("".join(first[seed] for seed in seeds), "".join(second[seed] for seed in seeds)))
        if pairs:
            made[rival, length] = paired_interval(pairs, len(PLANNED))
    return made


def test_table(results: dict[str, Any]) -> str:
    """The differences with their intervals, in bold where 0 is outside."""
    made = tests(results)
    rows = []
    for rival in dict.fromkeys(rival for rival, _ in made):
        found = [made.get((rival, length)) for length in LONGER]
        rows.append((_shown(rival), *(signed(interval, 2) if interval else "" for interval in found)))
    return markdown_table((f"`{TESTED}` minus", *(f"{length:,}" for length in LONGER)), rows)


def words(results: dict[str, Any]) -> str:
    """What the tests decide, in sentences; those that need what isn't measured aren't there."""
    made = tests(results)
    lines = []
    for sign, verb in ((1, "more"), (-1, "fewer")):
        decided: dict[str, list[str]] = {}
        for (rival, length), found in made.items():
            if direction(found) == sign:
                decided.setdefault(_shown(rival), []).append(f"{length:,}")
        found_in = [f"{rival} (at {', '.join(lengths)} tokens)" for rival, lengths in decided.items()]
        lines += [f"- `{TESTED}` finds {verb} passkeys than {'; '.join(found_in)}."] * bool(found_in)
    open_ends = [end for found in made.values() if not direction(found) for end in (found.low, found.high)]
    if open_ends:
        widest = max(abs(end) for end in open_ends if end is not None)
        lines.append(
            f"- Not decided: {len(open_ends) // 2} of {len(made)} comparisons. That doesn't mean equal: a difference "
            f"may be up to {widest:.2f}."
        )
    missing = len(PLANNED) - len(made)
    lines += [f"- Not measured yet: {missing} of the {len(PLANNED)} comparisons that are planned."] * bool(missing)
    return "\n".join([*lines, *_healing_words(results)])


def _healing_words(results: dict[str, Any]) -> list[str]:
    """How near the healed models are to the original, on texts that none was healed on."""
    made = [part for key, part in results["parts"].items() if key.startswith("heal/rope") and part.get("after")]
    if not made:
        return []
    before, after = (min(part[when]["cosine"] for part in made) for when in ("before", "after"))
    texts, tokens = made[0]["after"]["sequences"], made[0]["after"]["tokens"]
    healings = "a healing" if len(made) == 1 else f"{len(made)} healings"
    least = "a" if len(made) == 1 else "at least a"
    return [
        f"- After {healings} embeddings of {texts} other reviews, of {tokens / texts:.0f} tokens in the mean, have "
        f"{least} mean cosine of {after:.3f} with the original's, before of {before:.3f}."
    ]


def depth_table(results: dict[str, Any]) -> str:
    """The share of queries of the ways in `SHOWN` that find their text, by the quarter in which the passkey stands."""
    rows = []
    for length, name in itertools.product(LONGER, SHOWN):
        by_quarter: list[list[str]] = [[], [], [], []]
        for found in by_healing(results, name, length):
            for place, answer in enumerate("".join(found.values())):
                by_quarter[place % TEXTS * 4 // TEXTS].append(answer)
        if all(by_quarter):
            rows.append((f"{length:,}", _shown(name), *(f"{a.count('1') / len(a):.2f}" for a in by_quarter)))
    return markdown_table(("tokens", "", "first quarter", "second", "third", "last"), rows)


def figure(results: dict[str, Any]) -> Any:
    """The same shares of the ways in `SHOWN`, by length, with their intervals or ranges as bars."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    made = Figure(figsize=(7, 3.4), layout="constrained")
    axes = made.subplots()
    lengths = [length for length in LENGTHS if length >= TRAINED]
    for name, (label, style) in SHOWN.items():
        shares = {length: found for length in lengths if (found := share(results, name, length))}
        means = [found.mean for found in shares.values()]
        bars = [(found.mean - (found.low or 0), (found.high or 0) - found.mean) for found in shares.values()]
        if shares:
            axes.errorbar([*shares], means, yerr=[*zip(*bars, strict=True)], label=label, capsize=3, **style)
    axes.axhline(1 / TEXTS, color="0.6", linewidth=1)
    axes.text(lengths[0], 1 / TEXTS, "chance", color="0.4", va="bottom", fontsize="small")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], minor=False)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(xlabel="tokens of a text", ylabel="queries that find their text", ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return made


def _shown(name: str) -> str:
    """The name of a way, in Markdown."""
    return f"`{name}`" if " " not in name else name


def main() -> None:
    """The command."""
    parser = options_of(__doc__, "passkey")
    parser.add_argument("--work", default="runs/passkey", help="folder of the healed models")
    parser.add_argument("--healings", type=int, default=3, help="how many seeds of healing")
    run_study(parser.parse_args(), Study, table, test_table, words, depth_table)


if __name__ == "__main__":
    run_script(main)
