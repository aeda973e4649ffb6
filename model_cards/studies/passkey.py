"""Whether a lengthened model still finds one sentence in a long text: passkeys, with all-MiniLM-L6-v2 as converted.

    python -m model_cards.studies.passkey --data FOLDER --minilm FOLDER --output model_cards/results/passkey.json
    python -m model_cards.studies.passkey --healings 3 --data FOLDER --minilm FOLDER --output runs/passkey.json
    python -m model_cards.studies.passkey --table

As in LongEmbed (Zhu et al. 2024, arXiv 2404.12096): each of 50 texts repeats the same few sentences, and somewhere it
states the passkey of one person. A query asks for one person's passkey, and the text whose embedding has the highest
cosine with the query's is the answer. Embeddings are means over tokens, as all-MiniLM-L6-v2 has them. Nothing is
fine-tuned; chance is 1 in 50. The places of the passkeys are evenly spread over the texts.

`heal/rope` is how well the healed `rope` agrees with the original, `WAY/LENGTH/SEED` which queries found their text. By
--healings 3 `rope` is healed with three seeds, each measured in all ways: `heal/rope, healing 1`, and
`WAY, healing 1/LENGTH/SEED`. Each part is written as it ends; a study that was stopped goes on with the next one.
"""

import argparse
import functools
import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest
from torch.nn.functional import normalize
from tqdm import tqdm
from transformers import PreTrainedModel

from hf_posenc.checkpoints.tokenizers import open_tokenizer
from hf_posenc.conversion import Healing, convert
from hf_posenc.errors import run_script
from hf_posenc.markdown import markdown_table
from model_cards.studies.parts import NAME, Parts, data_folder, find_minilm, options_of, read_rows, run_study

TRAINED = 512
"""Positions of all-MiniLM-L6-v2. It was trained on texts of 128 tokens, and as published cuts them at 256."""
SEEDS = {256: 3, 512: 3, 1024: 3, 2048: 1, 4096: 1}
"""The lengths, and how many seeds each has: attention over long texts takes its time."""
LONGER = (1024, 2048, 4096)
"""Those that are longer than in training."""
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
        extension: of `convert`, to the length of the texts, or to the first of `LONGER`. None: as it is.
        windows: how texts are cut: the `first` tokens alone, the `mean` over the tokens of all `windows`, or the `best`
            of them. None: not at all.
        size: tokens of a window, at most.
        lengths: of the texts that are measured.
    """

    source: str
    extension: str | None = None
    windows: str | None = None
    size: int = TRAINED
    lengths: tuple[int, ...] = tuple(SEEDS)


WAYS = {
    "first 512 tokens": Way("learned", windows="first"),
    **{
        f"windows of {size}, {how}": Way("learned", windows=how, size=size, lengths=LONGER)
        for size in (512, 256, 128)
        for how in ("mean", "best")
    },
    "learned-tile": Way("learned", "tile"),
    "learned-interpolate": Way("learned", "interpolate"),
    "rope-unhealed": Way("rope", lengths=(256, 512)),
    "rope-default": Way("healed"),
    "rope-linear": Way("healed", "linear"),
    "rope-dynamic": Way("healed", "dynamic"),
    "rope-yarn": Way("healed", "yarn"),
}
RIVALS = [name for name, way in WAYS.items() if way.source == "learned" and (way.extension or way.lengths == LONGER)]
"""What `rope-dynamic` is tested against."""

SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "rope-dynamic": ("rope, healed,\nwith dynamic scaling", {"marker": "o", "color": "tab:blue"}),
    "windows of 256, best": ("the best window\nof 256 tokens", {"marker": "s", "color": "tab:orange"}),
    "windows of 512, mean": ("mean over windows\nof 512 tokens", {"marker": "D", "color": "tab:red"}),
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


def windows(tokenizer: Any, ids: list[int], size: int = TRAINED) -> list[list[int]]:
    """A text in as few windows of at most so many tokens as hold it, equally long, each with [CLS] and [SEP].

    Equally long, as a last window of a few tokens would be nearer to any query than one that holds an answer.
    """
    inner = ids[1:-1]
    count = -(-len(inner) // (size - 2))
    cuts = [round(len(inner) * number / count) for number in range(count + 1)]
    return [_framed(tokenizer, inner[start:end]) for start, end in itertools.pairwise(cuts)]


class Study:
    """The parts, and where their results are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.source, self.options = find_minilm(options.minilm), options
        self.work, self.parts = Path(options.work), Parts(options)
        self.tokenizer = open_tokenizer(str(self.source))
        self.tokenizer.model_max_length = max(SEEDS)

    def run(self) -> None:
        """All parts, the first healing's and the short texts' first."""
        for healing in range(self.options.healings):
            self.parts.measure(healed("heal/rope", healing), functools.partial(self.heal, healing))
        self.parts.wait()
        parts = [
            (name, length, seed, healing)
            for healing in range(self.options.healings)
            for length, seeds in SEEDS.items()
            for seed in range(seeds)
            for name, way in WAYS.items()
            if length in way.lengths and (way.source == "healed" or healing == 0)
        ]
        for name, length, seed, healing in tqdm(parts, unit="part"):
            find = functools.partial(self.find, WAYS[name], length, seed, healing)
            self.parts.measure(f"{healed(name, healing)}/{length}/{seed}", find)

    def find(self, way: Way, length: int, seed: int, healing: int = 0) -> dict[str, Any]:
        """Which queries find their text, in order of its passkey's place: a 1 or 0 for each."""
        model = self.model(way.source, way.extension, max(length, LONGER[0]), healing)
        queries, texts = passkeys(self.tokenizer, length, seed)
        asked = normalize(torch.stack([token_sum(model, query) for query in queries]), dim=-1)
        best = torch.stack([self._scores(model, way, asked, text) for text in texts], -1).argmax(-1)
        return {"found": "".join(str(int(place == number)) for number, place in enumerate(best.tolist()))}

    def _scores(self, model: PreTrainedModel, way: Way, asked: torch.Tensor, text: list[int]) -> torch.Tensor:
        """How near each query is to a text: (queries,)."""
        if way.windows == "first":
            text = _framed(self.tokenizer, text[1:-1][: TRAINED - 2])
        sums = self._sums(model, tuple(text), way.size if way.windows in ("mean", "best") else None)
        read = sums if way.windows == "best" else sums.sum(0, keepdim=True)
        return (asked @ normalize(read, dim=-1).T).amax(-1)

    @functools.lru_cache(maxsize=TEXTS)  # noqa: B019  # for the next way to read the same windows
    def _sums(self, model: PreTrainedModel, text: tuple[int, ...], size: int | None) -> torch.Tensor:
        """The sum over the tokens of each window, or of the whole text: (windows, D)."""
        cut = [[*text]] if size is None else windows(self.tokenizer, [*text], size)
        return torch.stack([token_sum(model, window) for window in cut])

    @functools.lru_cache(maxsize=1)  # noqa: B019  # one study per process
    def model(self, source: str, extension: str | None, length: int, healing: int) -> PreTrainedModel:
        """The model of a way to read texts of this length."""
        if source == "healed" and not (self._healed(healing) / "config.json").is_file():
            self.heal(healing)  # another machine did
        options: dict[str, Any] = (
            {} if extension is None else {"extension": extension, "max_position_embeddings": length}
        )
        if source == "rope":
            options["scheme"] = "rope"
        folder = self._healed(healing) if source == "healed" else self.source
        return convert(folder, head="feature-extraction", measure=False, seed=0, **options).model

    def _healed(self, healing: int) -> Path:
        """The folder of a healed model."""
        return self.work / healed("rope", healing)

    def heal(self, healing: int) -> dict[str, Any]:
        """Swaps `rope` in and heals it on film reviews of up to the trained length, half of them that long.

        The number of the healing is its seed: of the order of texts, and of the tokens that are swapped.
        """
        data = data_folder(self.options)
        texts = [row["text"] for split in ("train", "train_long") for row in read_rows(data, "imdb", split)[:1400]]
        held_out = [row["text"] for row in read_rows(data, "imdb", "test")[:100]]
        report = convert(
            self.source,
            self._healed(healing),
            scheme="rope",
            head="feature-extraction",
            healing=Healing(texts, max_steps=200, batch_tokens=8 * TRAINED, bf16=True, swap_distance=1),
            eval_texts=held_out,
            overwrite=True,
            seed=healing,
        ).report
        return {**report.to_dict(), "source": NAME}


def healed(name: str, healing: int) -> str:
    """The name of a part or a way after one of several healings."""
    return f"{name}, healing {healing}" if healing else name


def measured_ways(results: dict[str, Any]) -> list[str]:
    """The ways of which there are parts, those of further healings behind the first one's."""
    there = dict.fromkeys(key.split("/")[0] for key in results["parts"])
    last = max((int(name.rpartition(" ")[2]) for name in there if ", healing " in name), default=0)
    return [way for name in WAYS for way in (healed(name, number) for number in range(last + 1)) if way in there]


@torch.no_grad()
def token_sum(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """The sum over tokens, which points where their mean does: (D,)."""
    return model(torch.tensor([ids])).last_hidden_state[0].sum(0)


def table(results: dict[str, Any]) -> str:
    """The share of queries that find their text, with its 95 % interval (Wilson), by way and length."""
    rows = []
    for name in measured_ways(results):
        found = {length: _found(results, name, length) for length in SEEDS}
        rows.append((_shown(name), *(_share(found[length]) for length in SEEDS)))
    return markdown_table(("", *(f"{length:,}" for length in SEEDS)), rows)


def tests(results: dict[str, Any], way: str) -> dict[tuple[str, int], tuple[int, int, float]]:
    """`rope-dynamic` against each other way to read long texts, by McNemar's exact test on the same queries.

    Args:
        results: of all healings.
        way: of which healing.

    Returns:
        For each way and length the queries that only `rope-dynamic` finds, those that only the other way does, and the
        p-value, corrected for the tests of all healings (Bonferroni); nothing where one of the two isn't measured.
    """
    planned = len(RIVALS) * len(LONGER) * max(1, len(_dynamic(results)))
    made = {}
    for name, length in itertools.product(RIVALS, LONGER):
        answers = [_found(results, which, length) for which in (way, name)]
        if not all(answers):
            continue
        pairs = list(zip(*answers, strict=True))
        gained, lost = pairs.count(("1", "0")), pairs.count(("0", "1"))
        p = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        made[name, length] = gained, lost, min(1.0, p * planned)
    return made


def _dynamic(results: dict[str, Any]) -> list[str]:
    """`rope-dynamic` after each healing."""
    return [name for name in measured_ways(results) if name.startswith("rope-dynamic")]


def test_table(results: dict[str, Any]) -> str:
    """The tests: queries that only `rope-dynamic` finds, against those that only the other way finds."""
    return "\n\n".join(_test_table(tests(results, way), way) for way in _dynamic(results))


def _test_table(made: dict[tuple[str, int], tuple[int, int, float]], tested: str) -> str:
    rows = []
    for name in dict.fromkeys(name for name, _ in made):
        cells = {
            length: f"{gained} : {lost}, {f'p {p:.2g}' if p < 0.05 else 'not decided'}"
            for (way, length), (gained, lost, p) in made.items()
            if way == name
        }
        rows.append((_shown(name), *(cells.get(length, "") for length in LONGER)))
    return markdown_table((f"{_shown(tested)} against", *(f"{length:,}" for length in LONGER)), rows)


def depth_table(results: dict[str, Any]) -> str:
    """The share of queries of the ways in `SHOWN` that find their text, by the quarter in which the passkey stands."""
    rows = []
    ways = [name for shown in SHOWN for name in measured_ways(results) if name.partition(", healing")[0] == shown]
    for length in LONGER:
        for name in ways:
            if not (found := _found(results, name, length)):
                continue
            by_quarter: list[list[str]] = [[], [], [], []]
            for place, answer in enumerate(found):
                by_quarter[place % TEXTS * 4 // TEXTS].append(answer)
            rows.append((f"{length:,}", _shown(name), *(f"{a.count('1') / len(a):.2f}" for a in by_quarter)))
    return markdown_table(("tokens", "", "first quarter", "second", "third", "last"), rows)


def figure(results: dict[str, Any]) -> Any:
    """The same shares of the ways in `SHOWN`, by length, with their intervals as bars."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    made = Figure(figsize=(7, 3.4), layout="constrained")
    axes = made.subplots()
    lengths = [length for length in SEEDS if length >= TRAINED]
    for name, (label, style) in SHOWN.items():
        answers = {length: found for length in lengths if (found := _found(results, name, length))}
        ends = [binomtest(found.count("1"), len(found)).proportion_ci(method="wilson") for found in answers.values()]
        shares = [found.count("1") / len(found) for found in answers.values()]
        bars = [[abs(share - end[side]) for share, end in zip(shares, ends, strict=True)] for side in (0, 1)]
        axes.errorbar([*answers], shares, yerr=bars, label=label, capsize=3, **style)
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
    way, *healing = name.partition(", healing")
    return f"`{way}`{''.join(healing)}" if " " not in way else name


def _found(results: dict[str, Any], name: str, length: int) -> str:
    """The answers of all seeds."""
    return "".join(part["found"] for key, part in results["parts"].items() if key.startswith(f"{name}/{length}/"))


def _share(found: str) -> str:
    if not found:
        return ""
    ends = binomtest(found.count("1"), len(found)).proportion_ci(method="wilson")
    return f"{found.count('1') / len(found):.2f} [{ends.low:.2f}, {ends.high:.2f}]"


def main() -> None:
    """The command."""
    parser = options_of(__doc__, "passkey")
    parser.add_argument("--work", default="runs/passkey", help="folder of the healed models")
    parser.add_argument("--healings", type=int, default=1, help="how many seeds of healing")
    run_study(parser.parse_args(), Study, table, test_table, depth_table)


if __name__ == "__main__":
    run_script(main)
