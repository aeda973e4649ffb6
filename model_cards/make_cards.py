"""Makes the model cards of the schemes, `model_cards/<scheme>.md`, and their pictures.

    python -m model_cards.make_cards            # cards and pictures
    python -m model_cards.make_cards --train    # first the weights that pictures show: 15 minutes of a core

Facts come from the code, results from the tables in `results/`, papers from `references.bib`. "When to choose it" is
written by hand and kept. A scheme without a card gets one.
"""

import argparse
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hf_posenc.checkpoints.loading import load_any
from hf_posenc.checkpoints.opening import open_checkpoint
from hf_posenc.comparison import Summary, execute, read_plan
from hf_posenc.comparison.statistics import Contrast, group_scores, tested_lengths
from hf_posenc.files import write_text
from hf_posenc.markdown import code, plain, render
from hf_posenc.model.configuration_posenc import PosEncConfig
from hf_posenc.model.modeling_posenc import PosEncModel
from hf_posenc.model.scheme_base import PositionScheme
from hf_posenc.model.scheme_factory import make_scheme, own_arguments
from hf_posenc.model.scheme_table import SCHEMES
from hf_posenc.schemes.describe import SchemeSummary, describe_schemes
from hf_posenc.schemes.plots import plot_position, save_figure
from model_cards.formulas import latex

FOLDER = Path(__file__).parent
TRAINED = FOLDER / "trained_positions.safetensors"
UNWRITTEN = "TO BE WRITTEN: when to choose this scheme, and when not, in two to five sentences."
"""Stands in a new card; a test fails until it has been replaced."""
UNSEEN = ("none",)
"""Schemes that have nothing to draw."""
_WHERE = {
    "embed": "embeddings, once",
    "rotate": "queries and keys, in each layer",
    "bias": "attention logits, the same in all layers",
    "layer_bias": "attention logits, in each layer",
}
"""What each hook changes."""


def write_cards(folder: str | Path = FOLDER, names: Sequence[str] = ()) -> None:
    """Writes cards and pictures anew, and keeps what is written by hand.

    Args:
        folder: of the cards, with `results/` and `references.bib`.
        names: schemes; none: all of the table.

    Raises:
        ImportError: matplotlib isn't installed.
    """
    folder = Path(folder)
    comparisons = read_comparisons(folder)
    for row in describe_schemes():
        if names and row.name not in names:
            continue
        write_text(folder / f"{row.name}.md", render_card(folder, row, comparisons))
        if row.name not in UNSEEN:
            save_figure(draw(row.name), folder / "pictures" / f"{row.name}.png", dpi=80)


def read_comparisons(folder: Path = FOLDER) -> dict[str, Summary]:
    """The committed comparisons, by the name of their plan."""
    return {path.parent.name: Summary.of(path.parent) for path in sorted(folder.glob("results/*/plan.json"))}


def read_results(folder: Path, name: str) -> dict[str, Any]:
    """`results/NAME.json`, of a benchmark or a study."""
    return json.loads((folder / "results" / f"{name}.json").read_text(encoding="utf-8"))


def render_card(folder: Path, row: SchemeSummary, comparisons: dict[str, Summary]) -> str:
    """A card as it should be, with what is written by hand in the one that is there."""
    path = folder / f"{row.name}.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    config = PosEncConfig.from_size("base", position_embedding_type=row.name)
    with torch.device("meta"):
        scheme = make_scheme(config)
    made = type(scheme)
    first, *others = _paragraphs(made)
    summary, _, formula = first.rstrip(".").partition(": ")
    paragraphs = [re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", part) for part in others]
    entries, keys = read_references(folder), [f"{who.split()[0].lower()}{who[-4:]}" for who, _ in papers(made)]
    return render(
        FOLDER / "card.md.jinja",
        name=row.name,
        summary=summary,
        formula=latex(formula),
        paragraphs=paragraphs,
        facts=[fact for fact in _facts(row, scheme).items() if fact[1]],
        picture="" if row.name in UNSEEN else f"pictures/{row.name}.png",
        by_hand=by_hand(text) or UNWRITTEN,
        head=("plan", "tasks", "tokens", "best baseline", *map(code, _beside(row.name)), "verdict"),
        results=[
            (f"[{plan}](results/{plan}/report.md)", *cells)
            for plan, comparison in comparisons.items()
            for cells in _results(row.name, comparison)
        ],
        arguments=_arguments(made, config),
        citations=[entries[key] for key in keys if key in entries],
    )


def _facts(row: SchemeSummary, scheme: PositionScheme) -> dict[str, str]:
    """What a reader looks up; empty where the code doesn't say."""
    biased = scheme.uses("bias") or scheme.uses("layer_bias")
    flash = "FlashAttention 2 with `directional=False`" if row.name == "alibi" else "FlashAttention takes no bias"
    sight = {True: "distances alone", False: "absolute positions", None: ""}[scheme.shift_invariant]
    changed = [what for hook, what in _WHERE.items() if scheme.uses(hook)]
    return {
        "papers": papers_of(type(scheme)),
        "acts on": "nothing" if row.name in UNSEEN else "; ".join(changed),
        "sees": "no order" if scheme.order_blind else sight,
        "weights at base size": f"{row.parameters:,}",
        "max length": "any" if row.max_length is None else f"{row.max_length:,} (`max_position_embeddings`)",
        "backends": f"eager, sdpa; {flash}" if biased else "eager, sdpa, FlashAttention",
    }


def by_hand(card: str) -> str:
    """What a card says of when to choose its scheme."""
    return re.split(r"\n(?:## |<!--)", card.partition("## When to choose it\n")[2])[0].strip()


def _beside(name: str) -> tuple[str, ...]:
    """The control and the scheme."""
    return tuple(dict.fromkeys(("none", name)))


def _results(name: str, comparison: Summary) -> Iterator[tuple[str, ...]]:
    """A row for each group of tasks and length."""
    plan = comparison.plan
    published = ", published form" if name in plan.scheme_kwargs else ""
    for group, tasks in plan.tested_groups.items() if name in plan.schemes else ():
        for length in tested_lengths(plan):
            scored = {
                other: fmean(values.values())
                for other in (*comparison.baselines, *_beside(name))
                if (values := group_scores(comparison.table, tasks, other, length))
            }
            best = max((other for other in comparison.baselines if other in scored), key=lambda other: scored[other])
            verdicts = [
                _verdict(contrast, plan.margin)
                for contrast in comparison.contrasts
                if (contrast.group, contrast.length, contrast.scheme) == (group, length, name)
            ]
            shown = group if tasks == (group,) else f"{group}: {', '.join(tasks)}"
            numbers = (f"{scored[other]:.3f}" if other in scored else "too long" for other in _beside(name))
            yield (
                f"{plain(shown)}{published}",
                f"{length:,}",
                f"{best} {scored[best]:.3f}",
                *numbers,
                ", ".join(verdicts),
            )


def _verdict(contrast: Contrast, margin: float | None) -> str:
    """What is known of a difference: `better than X (+0.050)`, `within 0.03 of X (-0.004)`, ..."""
    reference = f"`{contrast.reference}` ({contrast.interval.mean:+.3f})"
    if contrast.is_found:
        direction = "better" if contrast.interval.mean > 0 else "worse"
        return f"{direction} than {reference}" + (f", within {margin:g} of it" if contrast.is_within else "")
    if contrast.is_within:
        return f"within {margin:g} of {reference}"
    return f"{contrast.verdict.partition(':')[0]} against {reference}"


def _arguments(scheme: type[PositionScheme], config: PosEncConfig) -> list[tuple[str, str, str]]:
    """Arguments, defaults, and meanings as docstrings have them."""
    meanings: dict[str, str] = {}
    for base in reversed(scheme.__mro__):
        meanings |= _argument_texts(base)
    own = {argument: (config.position_embedding_kwargs or {}).get(argument) for argument in own_arguments(scheme)}
    if config.rope_parameters is not None:
        own["rope_parameters"] = config.rope_parameters
    return [(f"`{argument}`", f"`{value!r}`", meanings.get(argument, "")) for argument, value in own.items()]


def read_references(folder: Path = FOLDER) -> dict[str, str]:
    """The entries of `references.bib` by key: the first author's name and the year, as docstrings have them."""
    path = folder / "references.bib"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return {key: entry for entry, key in re.findall(r"^(@\w+\{(\w+),\n.*?\n\})$", text, flags=re.DOTALL | re.MULTILINE)}


def _paragraphs(scheme: type) -> list[str]:
    """The class docstring before its sections, a line for each paragraph and each point of a list."""
    text = re.split(r"\n(?:Args|Raises|Returns):", inspect.cleandoc(scheme.__doc__ or ""))[0]
    return ["\n".join(" ".join(line.split()) for line in re.split(r"\n(?=- )", part)) for part in text.split("\n\n")]


def _argument_texts(scheme: type) -> dict[str, str]:
    """What a docstring's `Args:` say, by argument."""
    section = re.search(r"\nArgs:\n(.*?)(?=\n\S|\Z)", inspect.cleandoc(scheme.__dict__.get("__doc__") or ""), re.DOTALL)
    texts = {}
    for entry in re.split(r"\n    (?! )", "\n" + section.group(1).rstrip() if section else ""):
        head, colon, meaning = entry.partition(": ")
        if colon and not meaning.startswith("see `"):
            names = re.sub(r"\(.*?\)", "", head).split(",")
            texts.update({name.strip(): " ".join(meaning.split()).replace("|", "\\|") for name in names})
    return texts


def papers_of(scheme: type) -> str:
    """The papers of a scheme, linked where the docstring gives an arXiv number."""
    return ", ".join(f"[{who}](https://arxiv.org/abs/{number})" if number else who for who, number in papers(scheme))


def papers(scheme: type) -> list[tuple[str, str]]:
    """Authors and year as the docstring cites them, with the arXiv number or nothing."""
    who = r"[A-Z][\w-]+ (?:et al\.,?[^.;]{0,30}?|and [A-Z][\w-]+) (?:19|20)\d\d"
    citation = rf"({who})((?:(?! et al)[^;]){{0,120}}?arXiv (\d{{4}}\.\d{{4,5}}))?"
    found: dict[str, str] = {}
    for name, _, number in re.findall(citation, " ".join(_paragraphs(scheme))):
        found.setdefault(name, number)
    return list(found.items())


def draw(name: str) -> Any:
    """The picture of a scheme; where its weights start at random, those of a short training, in a new encoder."""
    trained = read_trained().get(name)
    if trained is None:
        return plot_position(_config(name), max_positions=192 if name == "window" else None)
    config, weights = trained
    model = PosEncModel(config)
    model.position.load_state_dict(weights)
    figure = plot_position(model)
    figure.suptitle(f"{name} after a short training (plan quick), in a new encoder", fontsize=11, fontweight="bold")
    return figure


def _config(name: str) -> PosEncConfig:
    return PosEncConfig.from_size("mini", position_embedding_type=name)


def initial_weights(config: PosEncConfig, seed: int) -> dict[str, torch.Tensor]:
    """The weights that a scheme has in a new model."""
    torch.manual_seed(seed)
    return PosEncModel(config).position.state_dict()


def random_schemes() -> list[str]:
    """The schemes whose weights start at random."""
    starts = {name: [initial_weights(_config(name), seed) for seed in (0, 1)] for name in SCHEMES}
    return [name for name, (a, b) in starts.items() if any(not torch.equal(a[key], b[key]) for key in a)]


def train_positions() -> None:
    """Trains a tiny encoder of the plan `quick` under each of them, and writes the schemes' weights into one file."""
    plan, weights, configs = read_plan("quick", schemes=random_schemes()), {}, {}
    folder = FOLDER.parent / "runs" / "positions"
    execute(plan, folder, keep_models=True)
    for run in plan.runs():
        model: Any = load_any(open_checkpoint(folder / "models" / run.name))
        for key, tensor in model.base_model.position.state_dict().items():
            weights[f"{run.scheme}/{key}"] = tensor.half().contiguous()
        configs[run.scheme] = model.config.to_json_string()
    save_file(weights, TRAINED, metadata=configs)


def read_trained() -> dict[str, tuple[PosEncConfig, dict[str, torch.Tensor]]]:
    """Configs and weights of the schemes that were trained."""
    with safe_open(TRAINED, "pt") as file:
        made = {name: PosEncConfig.from_dict(json.loads(text)) for name, text in (file.metadata() or {}).items()}
        weights = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118
    return {
        name: (config, {key.partition("/")[2]: t for key, t in weights.items() if key.startswith(f"{name}/")})
        for name, config in made.items()
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train the weights that pictures show")
    if parser.parse_args().train:
        train_positions()
    write_cards()


if __name__ == "__main__":
    main()
