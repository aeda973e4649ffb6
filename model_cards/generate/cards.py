"""Model cards of the schemes, `model_cards/<scheme>.md`: generated parts between marks, the rest written by hand.

    python -m model_cards.generate.cards [FOLDER]

brings the generated parts and the pictures up to date, and starts a card for each scheme that has none. Everything
generated comes from the code (the class docstrings, the config's defaults, `hf-posenc schemes`, the hooks), the
measurements in `results/` and the papers in `references.bib`.
"""

import argparse
import hashlib
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import ModelCardData

from hf_posenc.comparison.findings import interval_text
from hf_posenc.comparison.study import Study
from hf_posenc.files import write_bytes, write_text
from hf_posenc.markdown import markdown_table, render
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.position_base import PositionScheme
from hf_posenc.model.positions import make_position, own_arguments
from hf_posenc.model.scheme_table import SCHEMES
from hf_posenc.schemes.describe import SchemeSummary, describe_schemes
from hf_posenc.schemes.panels import Lines, Maps, Panel, position_panels, read_effects
from hf_posenc.schemes.plots import plot_comparison, plot_position, small_png
from hf_posenc.schemes.sources import read_source
from model_cards.generate import practitioner
from model_cards.generate.answers import render_answers
from model_cards.generate.card_results import (
    Results,
    eval_results,
    hub_name,
    limits_of_the_evidence,
    on_the_hub,
    results_part,
)
from model_cards.generate.curve import scheme_chart

COMMAND = "python -m model_cards.generate.cards"
TEMPLATES = Path(__file__).parent
FOLDER = TEMPLATES.parent
UNWRITTEN = "TO BE WRITTEN: when to choose this scheme, and when not, in two to five sentences."
"""Stands in a new page; a test fails until it has been replaced."""
COMPARED = ("sinusoidal", "learned", "rope", "alibi", "t5", "fire")
"""The schemes of the sheet on the page of all."""
PICTURE_PRESET = "mini"
"""Four heads, 256 dimensions: few enough to tell apart in a picture."""

_WHERE = {
    "nothing": "nothing",
    "embeddings": "embeddings, once",
    "rotation": "queries and keys, in each layer",
    "appended": "attention logits, by more entries of queries and keys",
    "bias": "attention logits, the same in all layers",
    "layer bias": "attention logits, in each layer",
}
_CARD = f"""# `{{name}}`

<!-- generated: summary -->
<!-- end -->

## When to choose it

{UNWRITTEN}

<!-- generated: results -->
<!-- end -->

<!-- generated: reference -->
<!-- end -->
"""


def write_cards(folder: str | Path = FOLDER, names: Sequence[str] | None = None) -> list[Path]:
    """Writes every card and picture anew, keeping what is written by hand; returns the files that changed.

    Args:
        folder: of the pages; `results/` in it holds measurements, `pictures/` gets the pictures.
        names: schemes; None: all of the table.

    Raises:
        ImportError: matplotlib isn't installed.
        ValueError: a page has lost a mark, or the folder doesn't exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is no folder. Run this in a checkout of hf_posenc, or name its model_cards.")
    results = Results(folder)
    texts = render_cards(folder, names, results)
    record = read_record(folder)
    pictures: dict[str, bytes] = {}
    for name in names or SCHEMES:
        lengths = length_data(results, name)
        if lengths and not shows(folder, f"{name}_lengths", lengths):
            pictures[f"{name}_lengths"] = draw_lengths(results, name)
        data = picture_data(picture_panels(name))
        if not is_fresh(data, record.get(name)):
            record[name] = data
        if not shows(folder, name, [record[name]]):
            pictures[name] = draw_picture([name], [record[name]])
    compared = [record[name] for name in COMPARED if name in record]
    if names is None and not shows(folder, "comparison", compared):
        pictures["comparison"] = draw_picture(COMPARED, compared)
    for name in practitioner.PLANS if names is None else ():
        small = results.studies.get(name)
        if small is not None and not shows(folder, name, practitioner.picture_data(small)):
            pictures[name] = draw_practitioner(small)
    entries = [f"{json.dumps(name)}: {json.dumps(record[name])}" for name in SCHEMES if name in record]
    texts[folder / "pictures" / "data.json"] = "{\n" + ",\n".join(entries) + "\n}\n"
    changed = []
    for name, content in pictures.items():
        path = folder / "pictures" / f"{name}.png"
        write_bytes(path, content)
        changed.append(path)
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            changed.append(path)
    return changed


def render_cards(
    folder: str | Path = FOLDER, names: Sequence[str] | None = None, results: Results | None = None
) -> dict[Path, str]:
    """The cards as they should be, with what is written by hand in those that exist.

    Raises:
        ValueError: a page has lost a mark.
    """
    folder = Path(folder)
    results = results or Results(folder)
    papers = read_references(folder)
    rows = {row.name: row for row in describe_schemes() if names is None or row.name in names}
    pages, where = {}, {name: _where(name) for name in rows}
    for name, row in rows.items():
        path = folder / f"{name}.md"
        text = path.read_text(encoding="utf-8") if path.is_file() else _CARD.format(name=name)
        scheme, config = _base(name)
        parts = {
            "summary": _summary(row, scheme, where[name]),
            "results": results_part(results, name),
            "reference": _reference(name, scheme, config, limits_of_the_evidence(results, name), papers),
        }
        text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
        pages[path] = f"---\n{_metadata(results, name)}\n---\n{fill_marks(path, text, parts)}"
    index = folder / "README.md"
    text = index.read_text(encoding="utf-8") if index.is_file() else _INDEX
    parts = {"answers": render_answers(folder, results), "table": _table(rows, results, where)}
    pages[index] = fill_marks(index, text, parts)
    return pages


_INDEX = """# Which scheme when

<!-- generated: answers -->
<!-- end -->

<!-- generated: table -->
<!-- end -->
"""


def fill_marks(path: Path, text: str, parts: dict[str, str]) -> str:
    """Puts each part between its mark, `<!-- generated: NAME -->`, and the next `<!-- end -->`.

    Raises:
        ValueError: a mark isn't there.
    """
    for name, part in parts.items():
        mark = f"<!-- generated: {name} -->\n"
        before, separator, rest = text.partition(mark)
        _, end, after = rest.partition("<!-- end -->")
        if not separator or not end:
            raise ValueError(f"{path}: the mark {mark.strip()!r}, or the end mark after it, is lost. Put them back.")
        text = f"{before}{mark}\n{part.rstrip()}\n\n{end}{after}"
    return text


def _base(name: str) -> tuple[PositionScheme, PosEncConfig]:
    config = PosEncConfig.from_preset("base", position_embedding_type=name)
    with torch.device("meta"):
        return make_position(config), config


def _metadata(results: Results, name: str) -> str:
    """What the Hub reads of a card."""
    listed, measured = on_the_hub(results, name), eval_results(results, name)
    return ModelCardData(
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="text-classification",
        tags=["posenc", "positional-encoding", name, "custom_code"],
        datasets=sorted({str(hub_name(finding.data)) for finding in listed}) or None,
        metrics=sorted({finding.metric for finding in listed}) or None,
        model_name=f"posenc-{name}" if measured else None,
        eval_results=measured or None,
    ).to_yaml()


def _summary(row: SchemeSummary, scheme: PositionScheme, where: str) -> str:
    first, *others = _paragraphs(type(scheme))
    what, colon, formula = first.rstrip(".").partition(": ")
    facts = {
        "papers": papers_of(type(scheme)),
        "acts on": where,
        "sees": _sight(scheme),
        "weights at base size": f"{row.parameters:,}",
        "max length": "any" if row.max_length is None else f"{row.max_length:,} (`max_position_embeddings`)",
        "backends": _backends(scheme),
    }
    return render(
        TEMPLATES / "summary.md.jinja",
        name=row.name,
        preset=PICTURE_PRESET,
        first=f"{what}: `{formula}`." if colon else first,
        others=[_linked(text) for text in others if not text.startswith("Cost")],
        costs=[text for text in others if text.startswith("Cost")],
        facts=[(name, fact) for name, fact in facts.items() if fact],
    )


def _reference(
    name: str, scheme: PositionScheme, config: PosEncConfig, measured: str | None, papers: dict[str, str]
) -> str:
    kwargs = config.position_embedding_kwargs or {}
    meanings = {}
    for base in reversed(type(scheme).__mro__):
        meanings.update(_argument_texts(base))
    defaults = {argument: kwargs.get(argument) for argument in own_arguments(type(scheme))}
    if config.rope_parameters is not None:
        defaults["rope_parameters"] = config.rope_parameters
    return render(
        TEMPLATES / "reference.md.jinja",
        name=name,
        scheme=scheme,
        biased=scheme.uses("bias") or scheme.uses("layer_bias"),
        arguments=[(f"`{name}`", f"`{value!r}`", meanings.get(name, "")) for name, value in defaults.items()],
        has_rope_parameters=config.rope_parameters is not None,
        measured=measured,
        papers=[papers[key] for who, _ in _found_papers(type(scheme)) if (key := _key(who)) in papers],
    )


def read_references(folder: str | Path = FOLDER) -> dict[str, str]:
    """The BibTeX entries of `references.bib` by key: the first author's name and the year of the docstrings."""
    path = Path(folder) / "references.bib"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return {key: entry for entry, key in re.findall(r"^(@\w+\{(\w+),\n.*?\n\})$", text, flags=re.DOTALL | re.MULTILINE)}


def _key(who: str) -> str:
    return f"{who.split()[0].lower()}{who[-4:]}"


def _table(rows: dict[str, SchemeSummary], results: Results, where: dict[str, str]) -> str:
    quick = results.studies.get("quickstart")
    scores = {} if quick is None else {name: quick.score(quick.tasks[0], name, 64) for name in quick.schemes}
    cells = []
    for name, row in rows.items():
        length = "any" if row.max_length is None else "its table's"
        accuracy = "" if (score := scores.get(name)) is None else interval_text(score)
        cells.append((f"[`{name}`]({name}.md)", row.summary, where[name], f"{row.parameters:,}", length, accuracy))
    head = ("scheme", "what it is", "acts on", "weights at base size", "max length", "quick start")
    return markdown_table(head, cells)


def _where(name: str) -> str:
    """What the scheme really changes, seen on a small model: `none` has a hook, and adds nothing."""
    config = PosEncConfig.from_preset("tiny", position_embedding_type=name)
    return "; ".join(_WHERE[effect.kind] for effect in read_effects(read_source(config), 2, 0))


def _sight(scheme: PositionScheme) -> str | None:
    if scheme.order_blind:
        return "no order"
    if scheme.shift_invariant is None:
        return None
    return "distances alone" if scheme.shift_invariant else "absolute positions"


def _backends(scheme: PositionScheme) -> str:
    biased = scheme.uses("bias") or scheme.uses("layer_bias")
    return "eager, sdpa; FlashAttention takes no bias" if biased else "eager, sdpa, FlashAttention"


# Docstrings


def _paragraphs(scheme: type) -> list[str]:
    """The class docstring before its sections, a line for each paragraph and each point of a list."""
    text = re.split(r"\n(?:Args|Raises|Returns):", inspect.cleandoc(scheme.__doc__ or ""))[0]
    return ["\n".join(" ".join(line.split()) for line in re.split(r"\n(?=- )", part)) for part in text.split("\n\n")]


def _argument_texts(scheme: type) -> dict[str, str]:
    """What a docstring's `Args:` say, by argument."""
    text = inspect.cleandoc(scheme.__dict__.get("__doc__") or "")
    section = re.search(r"\nArgs:\n(.*?)(?=\n\S|\Z)", text, flags=re.DOTALL)
    texts = {}
    for entry in re.split(r"\n    (?! )", "\n" + section.group(1).rstrip() if section else ""):
        head, colon, meaning = entry.partition(": ")
        names = re.sub(r"\(.*?\)", "", head)
        if colon and not meaning.startswith("see `"):
            texts.update({name.strip(): " ".join(meaning.split()).replace("|", "\\|") for name in names.split(",")})
    return texts


def _linked(text: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def papers_of(scheme: type) -> str:
    """Citations of the docstring: authors and year, linked where an arXiv number follows."""
    papers = _found_papers(scheme)
    return ", ".join(f"[{who}](https://arxiv.org/abs/{number})" if number else who for who, number in papers)


def _found_papers(scheme: type) -> list[tuple[str, str]]:
    who = r"[A-Z][\w-]+ (?:et al\.,?[^.;]{0,30}?|and [A-Z][\w-]+) (?:19|20)\d\d"
    citation = rf"({who})((?:(?! et al)[^;]){{0,120}}?arXiv (\d{{4}}\.\d{{4,5}}))?"
    papers: dict[str, str] = {}
    for who, _, number in re.findall(citation, " ".join(_paragraphs(scheme))):
        papers.setdefault(who, number)
    return list(papers.items())


# Pictures


def picture_panels(name: str) -> list[Panel]:
    """What the picture of a scheme's page shows."""
    return position_panels(_picture_config(name))


def picture_data(panels: Sequence[Panel]) -> dict[str, list[float | None]]:
    """The labels and a few numbers of each panel, enough to see that a picture shows something else now."""
    data = {}
    for panel in panels:
        values = np.empty(0)
        if isinstance(panel, Lines):
            values = panel.y
        elif isinstance(panel, Maps):
            values = panel.values
        flat = values.ravel()
        # A step that shares no factor with the usual sizes, so that all rows and columns are met.
        chosen = flat[np.arange(16) * 7919 % max(flat.size, 1)] if flat.size else flat
        labels = (getattr(panel, label, "") for label in ("title", "x_label", "y_label", "value_label", "group"))
        data[f"{' | '.join(filter(None, labels))} {tuple(values.shape)}"] = [
            None if np.isnan(value) else float(f"{value:.4g}") for value in chosen
        ]
    return data


def is_fresh(data: dict[str, Any], recorded: dict[str, Any] | None) -> bool:
    """Whether two `picture_data` show the same, up to what another processor's rounding makes of it."""
    if recorded is None or data.keys() != recorded.keys():
        return False
    for title, values in data.items():
        now, then = (np.array(side[title], dtype=float) for side in (data, recorded))
        scale = np.nanmax(np.abs(now), initial=0) if len(values) else 0
        if now.shape != then.shape or not np.allclose(now, then, rtol=2e-3, atol=2e-3 * scale, equal_nan=True):
            return False
    return True


def read_record(folder: str | Path = FOLDER) -> dict[str, Any]:
    """What the pictures in a folder show: `picture_data` by scheme."""
    path = Path(folder) / "pictures" / "data.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def shows(folder: str | Path, name: str, data: Sequence[dict[str, Any]]) -> bool:
    """Whether there is a picture of that name, and drawn from those numbers."""
    path = Path(folder) / "pictures" / f"{name}.png"
    return path.is_file() and _fingerprint(data).encode() in path.read_bytes()


def length_data(results: Results, name: str) -> list[dict[str, Any]]:
    """What the curve of a scheme's card shows; empty where it was tested at no several lengths."""
    panels = results.panels_of(name)
    return [{"scheme": name}, *panels] if panels else []


def draw_lengths(results: Results, name: str) -> bytes:
    """The curve of a scheme's card, as a png that tells which numbers it shows."""
    return small_png(scheme_chart(results.panels_of(name), name), _fingerprint(length_data(results, name)))


def draw_practitioner(study: Study) -> bytes:
    """The picture of small data sets, as a png that tells which numbers it shows."""
    return small_png(practitioner.chart(study), _fingerprint(practitioner.picture_data(study)))


def _fingerprint(data: Sequence[dict[str, Any]]) -> str:
    """Stands in the picture's file: it ties the picture to the numbers in `data.json`."""
    return hashlib.sha256(json.dumps(list(data), sort_keys=True).encode()).hexdigest()[:32]


def draw_picture(names: Sequence[str], data: Sequence[dict[str, Any]]) -> bytes:
    """The picture of a scheme, or the sheet of several, as a small png that tells which numbers it shows."""
    configs = [_picture_config(name) for name in names]
    figure = plot_position(configs[0]) if len(configs) == 1 else plot_comparison(configs)
    return small_png(figure, _fingerprint(data))


def _picture_config(name: str) -> PosEncConfig:
    return PosEncConfig.from_preset(PICTURE_PRESET, position_embedding_type=name)


def main() -> None:
    """Entry point of `python -m model_cards.generate.cards`."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", default=FOLDER, type=Path, help="default: model_cards of this checkout")
    folder = parser.parse_args().folder
    try:
        changed = write_cards(folder)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    print("\n".join(str(path) for path in changed) or "Everything is up to date.")
    for path in sorted(folder.glob("*.md")):
        if UNWRITTEN in path.read_text(encoding="utf-8"):
            print(f"{path}: say when to choose the scheme.")


if __name__ == "__main__":
    main()
