"""Fills the tables between marks in README.md, docs/ and model_cards/, and draws the picture that README shows.

python -m model_cards.make_pages
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

import hf_posenc
from hf_posenc.cli import app
from hf_posenc.comparison import Summary
from hf_posenc.comparison.tables import score_table
from hf_posenc.files import write_text
from hf_posenc.markdown import markdown_table, plain
from hf_posenc.model.configuration_posenc import PosEncConfig
from hf_posenc.model.scheme_factory import make_scheme
from hf_posenc.model.scheme_table import SCHEMES
from hf_posenc.options import READING, Options
from hf_posenc.schemes.describe import describe_schemes
from hf_posenc.schemes.plots import save_figure
from hf_posenc.training.trainer_fields import FIELDS
from model_cards.benchmark.tables import GPU, HOST, JUDGED, SERVING, rows_table
from model_cards.make_cards import FOLDER, papers_of, read_comparisons, read_results
from model_cards.studies import long_inputs, passkey
from model_cards.studies.conversion import table
from model_cards.studies.early_attention import near_table, read_measured
from model_cards.studies.kept import table as kept_table
from model_cards.studies.pretraining_pictures import curves, early_attention
from model_cards.studies.pretraining_plan import Results
from model_cards.studies.pretraining_tables import TABLES as PRETRAINING
from model_cards.studies.pretraining_tables import measured_runs
from model_cards.studies.recipe import few_table, pretrained_table, scratch_table, stock_gap


def render_pages(folder: Path = FOLDER) -> dict[Path, str]:
    """The pages as they should be, by path.

    Raises:
        ValueError: a page has lost a mark.
        OSError: results aren't there.
    """
    root, compared = folder.parent, read_comparisons(folder)
    pretraining = Results(folder / "results" / "pretraining")
    names = ("", "_bfloat16", "_proteins", "_sizes", "_schemes", "_2048", "_8192", "_serving")
    speeds = {name: read_results(folder, f"benchmark{name}") for name in names}
    converted, recipe = read_results(folder, "conversion"), read_results(folder, "recipe")
    found, sizes = read_results(folder, "passkey"), speeds["_sizes"]["settings"]["sizes"]
    pages = {
        folder / "README.md": {
            "scores": scores(compared["practitioner_3000"]),
            "schemes": short_table("[`{0}`]({0}.md)"),
        },
        folder / "speed.md": {
            "peers": f"{ratio_table(speeds[''])}\n\n{machine_line(speeds[''])}",
            "sizes": "\n\n".join(f"{size}:\n\n{ratio_table(speeds['_sizes'], size)}" for size in sizes),
            "bfloat16": ratio_table(speeds["_bfloat16"]),
            "proteins": f"{ratio_table(speeds['_proteins'])}\n\n{machine_line(speeds['_proteins'])}",
            "processors": "\n\n".join(processor_tables(folder)),
            "host": measured_targets(read_results(folder, "benchmark_host"), HOST),
            "serving": f"{rows_table(speeds['_serving']['rows'], SERVING)}\n\n{machine_line(speeds['_serving'])}",
            "schemes": contenders_table("", speeds["_schemes"]["rows"], "cost", "{:.2f}", ["work"]),
            "memory": contenders_table(
                "peak MB", speeds["_2048"]["rows"] + speeds["_8192"]["rows"], "peak_mb", "{:,.0f}", ["work"]
            ),
        },
        folder / "pretraining.md": {
            **{name: table(pretraining) for name, table in PRETRAINING.items()},
            "early": near_table(read_measured(pretraining.folder)),
        },
        root / "docs" / "serving.md": {"file": file_speeds(speeds["_serving"])},
        root / "docs" / "positions.md": {"schemes": scheme_table()},
        root / "docs" / "speed.md": {"speed": "\n\n".join(processor_ratios(folder))},
        root / "docs" / "gpus.md": {
            "gpu": measured_targets(read_results(folder, "benchmark_gpu"), GPU),
            "attention": attention_table(),
        },
        root / "docs" / "pretrained-weights.md": {
            "long_inputs": long_inputs.table(read_results(folder, "long_inputs")),
            "long_inputs_1000": long_inputs_of_more_rows(folder),
        },
        root / "docs" / "explanation.md": {
            "conversion": table(converted),
            "healed": scores(compared["practitioner_pretrained"]),
        },
        root / "docs" / "long-inputs.md": {
            "passkey": passkey.table(found),
            "passkey_words": passkey.words(found),
            "passkey_tests": passkey.test_table(found),
            "passkey_depth": passkey.depth_table(found),
        },
        root / "docs" / "reference" / "command-line.md": {"commands": command_tables()},
        root / "docs" / "reference" / "trainer-fields.md": {"fields": field_table()},
        root / "docs" / "recipe.md": {
            "few": few_table(read_results(folder, "few_rows")),
            "kept": kept_table(read_results(folder, "kept")),
            "scratch": scratch_table(recipe),
            "pretrained": f"{pretrained_table(recipe)}\n\n{stock_gap(recipe)}",
        },
    }
    rendered = {page: fill_marks(page, page.read_text(encoding="utf-8"), filled) for page, filled in pages.items()}
    return {
        **rendered,
        root / "examples" / "space" / "results.md": space_results(folder),
        folder / "results" / "pretraining" / "table.csv": measured_runs(pretraining).to_csv(index=False),
    }


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


# Comparisons


def scores(comparison: Summary) -> str:
    """All scores at the train length."""
    return score_table(comparison, comparison.columns(comparison.plan.home_length))


def long_inputs_of_more_rows(folder: Path) -> str:
    """The tables of the study of long inputs with 1,000 rows, once there are results."""
    name = "long_inputs_1000"
    if not (folder / "results" / f"{name}.json").is_file():
        return "Not measured yet."
    results = read_results(folder, name)
    return "\n\n".join(made(results) for made in (long_inputs.table, long_inputs.test_table, long_inputs.rate_table))


def space_results(folder: Path) -> str:
    """The start of each report, table and sentences, under the question that its plan asks: all that a Space has."""
    parts = ["<!-- Written by `make model-cards` from model_cards/results. -->\n"]
    evidence = (folder / "evidence.md").read_text(encoding="utf-8")
    for name, question in re.findall(r"^\| \[`(\w+)`\].*? \| (.+?) \|", evidence, re.MULTILINE):
        report = (folder / "results" / name / "report.md").read_text(encoding="utf-8")
        shown = report.partition("\n## Tests\n")[0].partition("\n\n")[2].replace("\n## ", "\n### ")
        parts.append(f"## {question} ({name})\n\n" + re.sub(r"!\[.*\n+|In the picture .*?\. ", "", shown))
    return "\n".join(parts)


# Speed


def ratio_table(results: dict[str, Any], size: str | None = None) -> str:
    """How fast each contender is, a column for each work and mode of one size (None: the first)."""
    first, size = results["settings"]["contenders"][0], size or results["settings"]["sizes"][0]
    rows = [row for row in results["rows"] if row["size"] == size]
    return contenders_table(f"times as fast as `{first}`", rows, "ratio", "{:.2f}")


def contenders_table(
    title: str, rows: Sequence[dict[str, Any]], value: str, form: str, columns: Sequence[str] = ("work", "mode")
) -> str:
    """A value of each contender, a column for each batch; empty where it wasn't measured."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if row[value] is not None:
            cells[row["contender"]][" ".join(row[name] for name in columns)] = form.format(row[value])
    head = list(dict.fromkeys(column for shown in cells.values() for column in shown))
    shown = [(f"`{name}`", *(measured.get(column, "") for column in head)) for name, measured in cells.items()]
    return markdown_table((title, *head), shown)


def machine_line(results: dict[str, Any]) -> str:
    """Where the numbers come from."""
    m = results["machine"]
    return (
        f"Measured on an {m['gpu'] or m['processor']}, {m['threads']} threads, {m['instructions']}, torch "
        f"{m['torch']}, transformers {m['transformers']}."
    )


def processors(folder: Path) -> dict[str, dict[str, Any]]:
    """What is measured under a processor's own name, by the file's."""
    names = sorted(path.stem for path in (folder / "results").glob("benchmark_on_*.json"))
    return {name: read_results(folder, name) for name in names}


def processor_ratios(folder: Path) -> list[str]:
    """For each of these processors how many times as fast as BERT schemes are in float32, and what it is."""
    measured = [results for name, results in processors(folder).items() if not name.endswith("_bfloat16")]
    return [
        f"{results['machine']['processor']}:\n\n{ratio_table(results)}\n\n{machine_line(results)}"
        for results in measured
    ]


def processor_tables(folder: Path) -> list[str]:
    """For each of these processors its float32 and bfloat16 tables, and what it is."""
    parts = []
    for name, results in processors(folder).items():
        kind = "bfloat16, BERT too" if name.endswith("_bfloat16") else "float32"
        shares = contenders_table("share of the linear layers", results["rows"], "linear_share", "{:.0%}")
        title = f"{results['machine']['processor']}, {kind}:"
        parts.append("\n\n".join((title, ratio_table(results), shares, machine_line(results))))
    return parts


def measured_targets(results: dict[str, Any], columns: Sequence[str]) -> str:
    """What was measured, the targets first."""
    return "\n\n".join(
        (machine_line(results), rows_table(results["targets"], JUDGED), rows_table(results["rows"], columns))
    )


def file_speeds(results: dict[str, Any]) -> str:
    """How many texts of a file each runtime predicts in a second, and what that costs in accuracy."""
    rows = {row["contender"]: row for row in results["rows"] if row["work"] == "file"}
    speeds = {contender: f"{row['texts_per_second']:,}" for contender, row in rows.items()}
    shown = [
        (runtime.replace(":", ", "), speeds[contender], speeds.get(f"bert:{runtime}", ""), f"{row['accuracy']:.3f}")
        for contender, row in rows.items()
        for model, _, runtime in [contender.partition(":")]
        if model == "posenc"
    ]
    head = ("runtime, precision", "texts a second", "BERT's", "accuracy")
    return f"{markdown_table(head, shown)}\n\n{machine_line(results)}"


# Schemes

SCHEME_HEAD = ("`position_embedding_type`", "what it is")


def short_table(name: str = "`{0}`") -> str:
    """The schemes and what each is, from the first words of the class."""
    return markdown_table(SCHEME_HEAD, [(name.format(row.name), _lower(row.summary)) for row in describe_schemes()])


def scheme_table() -> str:
    """The same with papers, weights and longest input."""
    rows = []
    for row in describe_schemes():
        longest = "any" if row.max_length is None else "`max_position_embeddings`"
        papers = papers_of(SCHEMES[row.name])
        rows.append((f"`{row.name}`", _lower(row.summary), papers, f"{row.parameters:,}", longest))
    return markdown_table((*SCHEME_HEAD, "papers", "weights at base size", "longest input"), rows)


def _lower(text: str) -> str:
    return text[0].lower() + text[1:] if text.split()[0].istitle() else text


def attention_table() -> str:
    """Which attention runs on a GPU: a row for the schemes of each kind of bias."""
    on_tokens, on_rows = "PyTorch's varlen attention, real tokens", "padded rows, the bias in the mask"
    refused = "refused: it takes no bias"
    cells = {
        "none": (
            f"{on_tokens}; without padding its FlashAttention",
            "padded rows, with a mask",
            "real tokens; float32: not at all",
        ),
        "windows": (f"{on_tokens}, with its windows; where nothing is padded, the bias as a mask", on_rows, refused),
        "slopes": (on_rows, on_rows, "refused; `directional=False` without a gradient of the slopes: real tokens"),
        "bias": (on_rows, on_rows, refused),
    }
    schemes = {name: make_scheme(PosEncConfig(position_embedding_type=name)) for name in SCHEMES}
    kinds: dict[str, list[str]] = {kind: [] for kind in cells}
    for name, scheme in schemes.items():
        biased = "slopes" if name == "alibi" else "windows" if scheme.windows(0) else "bias"
        kinds[biased if scheme.uses("bias") or scheme.uses("layer_bias") else "none"].append(f"`{name}`")
    rows = [(", ".join(names), *cells[kind]) for kind, names in kinds.items()]
    head = ("schemes", "`sdpa`, bfloat16 and float16", "`sdpa`, float32", "`flash_attention_2`")
    return markdown_table(head, rows)


# The command line


GROUPS = {
    "Data": (
        *("data", "data_config", "validation", "test", "validation_share", "max_rows", "split", "texts", "text_pair"),
        *(*READING, "problem_type", "heal", "eval_texts", "evaluate", "calibrate"),
    ),
    "Model": (
        *("checkpoint", "source", "pretrained", "revision", "trust_remote_code", "allow_other_tokens", "allow_pickle"),
        *("scheme", "schemes", "scheme_kwargs", "scheme_file", "reference", "size", "tokenizer", "max_length", "head"),
        *("rope_parameters", "max_position_embeddings", "extension", "to", "quantize", "largest_drop", "backend"),
    ),
    "Training": (
        *("lora", "epochs", "max_steps", "patience", "batch_size", "learning_rate", "schedule", "word_rate"),
        *("position_rate", "class_weights", "bf16", "set", "options", "search", "seed", "seeds"),
    ),
    "Answers": ("windows", "stride", "threshold", "top_k", "calibrated", "as_json", "errors"),
}
"""Parameters of commands by what they are about; the others are about the run."""


def command_tables() -> str:
    """For each command what it does, and its options by group, each with a sentence of its function's docstring."""
    group: Any = get_command(app)
    parent, parts = group.context_class(group, info_name="hf-posenc"), []
    for name, command in group.commands.items():
        context = group.context_class(command, info_name=name, parent=parent)
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        parts.append(f"## `{context.command_path}`\n\n{inspect.cleandoc(command.help)}\n\n`{usage}`")
        parts += _option_tables(name, command.get_params(context), context)
    return "\n\n".join(parts)


_OF_PYTHON = {"dataset", "eval_texts", "language", "only", "texts"}
"""Parameters whose docstring speaks of Python's values: here their option has its own help."""


def _option_tables(command: str, parameters: list[Any], context: Any) -> list[str]:
    """The options of a command, a table for each group."""
    sentences, defaults, rows = _sentences(command), _defaults(command), defaultdict(list)
    for parameter in parameters:
        if record := parameter.get_help_record(context):
            words, text = record
            about = next((title for title, names in GROUPS.items() if parameter.name in names), "Run")
            said = {} if parameter.name in _OF_PYTHON else sentences
            sentence = _on_the_command_line(said.get(str(parameter.name), text), parameter.required)
            default = defaults.get(parameter.name)
            if default is not None and "default" not in sentence.lower() and not parameter.required:
                sentence += f" Default: {default}."
            rows[about].append([f"`{words}`".replace("|", "\\|"), sentence.replace("|", "\\|")])
    titles = [title for title in (*GROUPS, "Run") if title in rows]
    return [markdown_table((title, ""), rows[title], "ll") for title in titles]


def _on_the_command_line(sentence: str, is_required: bool) -> str:
    """A parameter's sentence, for an option: what None means in Python is its default, where it has one."""
    said, none, default = sentence.partition("None: ")
    if is_required or not none:
        return said.rstrip()
    return f"{said}Default: {default}"


def _functions(command: str) -> list[Any]:
    """What takes the parameters of a command in Python; a later one says more of them."""
    found = getattr(hf_posenc, {"check": "check_scheme"}.get(command, command), None)
    functions = [found] * callable(found)  # `schemes` is a module
    return [*[Options] * len(functions), *[hf_posenc.Healing] * (command == "convert"), *functions]


def _defaults(command: str) -> dict[str, str]:
    """Defaults of a command's parameters in Python that are numbers or words."""
    parameters = [item for function in _functions(command) for item in inspect.signature(function).parameters.items()]
    kinds = (int, float, str)
    return {name: f"`{p.default}`" for name, p in parameters if type(p.default) in kinds}


def _sentences(command: str) -> dict[str, str]:
    """What the docstring of a command's function says of each parameter."""
    sentences: dict[str, str] = {}
    for documented in _functions(command):
        text = inspect.getdoc(documented) or ""
        for entry in re.finditer(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE):
            words = " ".join(entry[2].split())
            sentences[entry[1]] = words[:1].upper() + words[1:]
    return sentences


def field_table() -> str:
    """For each field of `TrainingArguments` what becomes of it: those that are taken first."""
    order = ("taken", "said", "refused")
    rows = []
    for name, field in sorted(FIELDS.items(), key=lambda item: (order.index(item[1].treatment), item[0])):
        accepts = [] if field.accepts is None else [field.accepts.text]
        needs = [f"with {field.needs}"] if field.needs else []
        says = f"says {field.text}" if field.treatment == "said" else field.text
        rows.append((f"`{name}`", field.treatment, plain("; ".join(filter(None, [*accepts, *needs, says])))))
    return markdown_table(("field", "", "values, or why it is refused"), rows, "lll")


def main() -> None:
    """The command."""
    for path, text in render_pages().items():
        write_text(path, text)
    save_figure(passkey.figure(read_results(FOLDER, "passkey")), FOLDER.parent / "docs" / "passkey.png")
    pretraining = FOLDER / "results" / "pretraining"
    save_figure(curves(Results(pretraining)), pretraining / "curves.png", dpi=100)
    save_figure(early_attention(read_measured(pretraining)), pretraining / "early_attention.png", dpi=100)


if __name__ == "__main__":
    main()
