"""Fills the generated tables of README.md, docs/ and model_cards/speed.md: schemes, speed, conversions, promises.

python -m model_cards.generate.pages
"""

import ast
from pathlib import Path
from typing import Any

from hf_posenc.comparison.references import TO_BEAT, WORD_PAIRS
from hf_posenc.comparison.report import named
from hf_posenc.comparison.statistics import Interval
from hf_posenc.comparison.study import Study
from hf_posenc.files import write_text
from hf_posenc.markdown import code, markdown_table
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.model.positions import make_position
from hf_posenc.model.scheme_table import SCHEMES
from hf_posenc.schemes.describe import describe_schemes
from model_cards.benchmark.tables import JUDGED, SERVING, SPEED, rows_table
from model_cards.generate.card_results import read_results
from model_cards.generate.cards import FOLDER, fill_marks, papers_of
from model_cards.generate.practitioner import by_set, contrasts
from model_cards.studies.conversion import long_table, long_words, table
from model_cards.studies.passkey import table as passkey_table
from model_cards.studies.recipe import pretrained_table, scratch_table, stock_gap


def ratio_table(results: dict[str, Any], size: str | None = None) -> str:
    """The ratios alone: a row for each contender, a column for each work and mode of one size (None: the first)."""
    size = size or results["settings"]["sizes"][0]
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for row in results["rows"]:
        if row["size"] == size:
            columns.setdefault((row["work"], row["mode"]), {})[row["contender"]] = row["ratio"]
    names = results["settings"]["contenders"]
    head = (f"times as fast as `{names[0]}`", *(f"{work} {mode}" for work, mode in columns))
    return markdown_table(
        head, [(f"`{name}`", *(f"{ratios[name]:.2f}" for ratios in columns.values())) for name in names]
    )


def share_table(results: dict[str, Any]) -> str:
    """The share of each contender's time that the linear layers alone take, a column for each work and mode."""
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for row in results["rows"]:
        columns.setdefault((row["work"], row["mode"]), {})[row["contender"]] = row["linear_share"]
    head = ("share of the linear layers", *(f"{work} {mode}" for work, mode in columns))
    names = results["settings"]["contenders"]
    return markdown_table(
        head, [(f"`{name}`", *(f"{shares[name]:.0%}" for shares in columns.values())) for name in names]
    )


def seeds_table(study: Study) -> str:
    """The quick start's scores over seeds: the linear models first, and which runs are above word pairs."""
    (task,) = study.tasks
    length = study.home_length(task)
    samples = {name: study.sample(task, name, length) for name in (*TO_BEAT, *study.schemes)}
    scores = {name: sample.values for name, sample in samples.items() if sample is not None}
    pairs = scores[WORD_PAIRS][0]
    rows = [[name, f"{scores.pop(name)[0]:.3f}", *[""] * 4] for name in TO_BEAT if name in scores]
    for name, values in scores.items():
        numbers = (values.mean(), values.std(ddof=1), values.min(), values.max())
        rows.append([f"`{name}`", *(f"{n:.3f}" for n in numbers), f"{(values > pairs).sum()} of {len(values)}"])
    return markdown_table(("positions", "mean", "std", "min", "max", "runs above word pairs"), rows)


def healed_table(study: Study) -> str:
    """Conversions after fine-tuning: scores, points above the original with 95 % intervals, and what was found."""
    names = (*study.references[study.tasks[0].name], *study.schemes)
    columns = []
    for task in study.tasks:
        length = study.home_length(task)
        gaps = {name: _points(value.interval) for name, value in study.differences(task, length).items()}
        scores = {name: score.mean for name in names if (score := study.score(task, name, length)) is not None}
        columns.append({name: f"{mean:.3f}{gaps.get(name, '')}" for name, mean in scores.items()})
    head = [str(task.data) for task in study.tasks]
    rows = [(named(study, name), *(cells.get(name, "") for cells in columns)) for name in names]
    found = f"Compared with {code(study.plan.baseline)}, by the corrected test: {by_set(contrasts(study))}."
    return f"{markdown_table(('', *head), rows)}\n\n{found}"


def _points(gap: Interval) -> str:
    low, high = gap.ends
    return f", {100 * gap.mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def cost_table(results: dict[str, Any]) -> str:
    """What each scheme adds: its time as a multiple of that of `none`, a column for each batch."""
    works = results["settings"]["works"]
    rows = []
    for name in results["settings"]["contenders"]:
        costs = {row["work"]: row["cost"] for row in results["rows"] if row["contender"] == name}
        rows.append((f"`{name}`", *(f"{costs[work]:.2f}" for work in works)))
    return markdown_table(("", *works), rows)


def memory_table(results: list[dict[str, Any]]) -> str:
    """Peak memory of a step, a column for each batch; empty where a scheme wasn't measured."""
    measured = [row for result in results for row in result["rows"]]
    works, rows = list(dict.fromkeys(row["work"] for row in measured)), []
    for name in dict.fromkeys(row["contender"] for row in measured):
        peaks = {row["work"]: row["peak_mb"] for row in measured if row["contender"] == name}
        rows.append((f"`{name}`", *("" if peaks.get(work) is None else f"{peaks[work]:,.0f}" for work in works)))
    return markdown_table(("peak MB", *works), rows)


def machine_line(results: dict[str, Any]) -> str:
    """Where the numbers come from."""
    m = results["machine"]
    return (
        f"{m['gpu'] or m['processor']}, {m['threads']} threads, {m['instructions']}, torch {m['torch']}, transformers "
        f"{m['transformers']}."
    )


def processor_tables(folder: Path) -> list[str]:
    """For each processor that is measured under its own name: its float32 and bfloat16 tables, and what it is."""
    parts = []
    for path in sorted((folder / "results").glob("benchmark_on_*.json")):
        if path.stem.endswith("_bfloat16"):
            continue
        results = read_results(folder, path.stem)
        parts.append(f"float32:\n\n{ratio_table(results)}\n\n{share_table(results)}")
        half = path.with_name(f"{path.stem}_bfloat16.json")
        if half.is_file():
            in_half = read_results(folder, half.stem)
            parts.append(f"bfloat16, BERT too:\n\n{ratio_table(in_half)}\n\n{share_table(in_half)}")
        parts.append(machine_line(results))
    return parts


def gpu_tables(folder: Path) -> str:
    """What `make gpu` measured, its targets first; a sentence where it hasn't run."""
    if not (folder / "results" / "benchmark_gpu.json").is_file():
        return "Nothing has been measured on a GPU yet."
    results = read_results(folder, "benchmark_gpu")
    tables = (rows_table(results["targets"], JUDGED), rows_table(results["rows"], SPEED))
    return "\n\n".join((f"Measured on one {machine_line(results)}", *tables))


def serving_part(results: dict[str, Any]) -> str:
    """What the benchmark of serving measured."""
    return f"{rows_table(results['rows'], SERVING)}\n\nMeasured on an {machine_line(results)}"


def file_speeds(results: dict[str, Any]) -> str:
    """How fast a file of texts is predicted in each runtime, and what that costs in accuracy."""
    rows = [row for row in results["rows"] if row["work"] == "file"]
    ours = [row for row in rows if row["contender"].startswith("posenc")]
    stock = {row["contender"].partition(":")[2]: f"{row['ratio']:.1f}" for row in rows if row not in ours}
    shown = []
    for row in ours:
        runtime = row["contender"].partition(":")[2]
        shown.append(
            (runtime.replace(":", ", "), f"{row['ratio']:.1f}", stock.get(runtime, ""), f"{row['accuracy']:.3f}")
        )
    head = ("runtime, precision", "a checkpoint with `rope`", "stock BERT of its size", "accuracy of the checkpoint")
    return f"{markdown_table(head, shown)}\n\nMeasured on an {machine_line(results)}"


def render_pages(folder: Path) -> dict[Path, str]:
    """The pages as they should be, by path.

    Raises:
        ValueError: a page has lost a mark.
        OSError: results aren't there.
    """
    benchmarks = {
        name: read_results(folder, f"benchmark{name}")
        for name in (
            "",
            "_bfloat16",
            "_sizes",
            "_schemes",
            "_2048",
            "_8192",
        )
    }
    served = read_results(folder, "benchmark_serving")
    parts = {
        "sizes": "\n\n".join(
            f"{size}:\n\n{ratio_table(benchmarks['_sizes'], size)}" for size in _sizes(benchmarks["_sizes"])
        ),
        "bfloat16": ratio_table(benchmarks["_bfloat16"]),
        "processors": "\n\n".join(processor_tables(folder)),
        "gpu": gpu_tables(folder),
        "serving": serving_part(served),
        "schemes": cost_table(benchmarks["_schemes"]),
        "memory": memory_table([benchmarks["_2048"], benchmarks["_8192"]]),
    }
    converted = read_results(folder, "conversion")
    recipe = read_results(folder, "recipe")
    root = folder.parent
    pages = {
        folder / "speed.md": parts,
        root / "docs" / "serving.md": {"file": file_speeds(served)},
        root / "README.md": {
            "quickstart": seeds_table(Study.read(folder / "results" / "compare-quickstart")),
            "schemes": short_table(),
        },
        root / "docs" / "positions.md": {"schemes": scheme_table()},
        root / "docs" / "speed.md": {
            "speed": f"{ratio_table(benchmarks[''])}\n\nMeasured on an {machine_line(benchmarks[''])}"
        },
        root / "docs" / "more-than-one-gpu.md": {"attention": attention_table()},
        root / "docs" / "pretrained-weights.md": {
            "conversion": table(converted),
            "healed": healed_table(Study.read(folder / "results" / "compare-practitioner_pretrained")),
            "conversion_long": f"{long_words(converted)}\n\n{long_table(converted)}",
            "passkey": passkey_table(read_results(folder, "passkey")),
        },
        root / "docs" / "promises.md": promise_tables(root / "tests"),
        root / "docs" / "recipe.md": {
            "scratch": scratch_table(recipe),
            "pretrained": f"{pretrained_table(recipe)}\n\n{stock_gap(recipe)}",
        },
    }
    return {page: fill_marks(page, page.read_text(encoding="utf-8"), filled) for page, filled in pages.items()}


def promise_tables(tests: Path) -> dict[str, str]:
    """For each part of the page the promises, and the test that keeps each: from `pytest.mark.promise(part, text)`."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        name = path.relative_to(tests.parent).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            test = f"{name}::{node.name}" if isinstance(node, ast.FunctionDef) else name
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.promise":
                    part, promise = map(ast.literal_eval, call.args)
                    rows.setdefault(part, []).append((promise, f"`{test}`"))
    return {part: markdown_table(("promise", "test"), kept) for part, kept in rows.items()}


def attention_table() -> str:
    """Which attention runs on a GPU: a row for the schemes of each kind of bias."""
    kinds: dict[bool, list[str]] = {}
    for name in SCHEMES:
        scheme = make_position(PosEncConfig(position_embedding_type=name))
        biased = scheme.uses("bias") or scheme.uses("layer_bias")
        kinds.setdefault(biased, []).append(f"`{name}`")
    rows = []
    for biased, names in kinds.items():
        on_rows = "padded rows, the bias in the mask"
        half = on_rows if biased else "PyTorch's varlen attention, real tokens; without padding its FlashAttention"
        single = on_rows if biased else "padded rows, with a mask"
        flash = "refused: it takes no bias" if biased else "real tokens; float32: not at all"
        rows.append((", ".join(names), half, single, flash))
    head = ("schemes", "`sdpa`, bfloat16 and float16", "`sdpa`, float32", "`flash_attention_2`")
    return markdown_table(head, rows)


SCHEME_HEAD = ("`position_embedding_type`", "what it is")


def short_table() -> str:
    """The schemes and what each is, from the first words of the class."""
    return markdown_table(SCHEME_HEAD, [(f"`{row.name}`", _lower(row.summary)) for row in describe_schemes()])


def scheme_table() -> str:
    """The same with papers, weights and longest input."""
    rows = []
    for row in describe_schemes():
        longest = "any" if row.max_length is None else "`max_position_embeddings`"
        papers = papers_of(SCHEMES[row.name])
        rows.append((f"`{row.name}`", _lower(row.summary), papers, f"{row.parameters:,}", longest))
    return markdown_table((*SCHEME_HEAD, "papers", "weights at base size", "longest input"), rows)


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _sizes(results: dict[str, Any]) -> list[str]:
    return results["settings"]["sizes"]


def main() -> None:
    """Entry point of `python -m model_cards.generate.pages`."""
    for path, text in render_pages(FOLDER).items():
        write_text(path, text)
        print(path)


if __name__ == "__main__":
    main()
