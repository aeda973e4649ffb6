"""Results as tables and a plot, and the files that hold them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_posenc.errors import UserError
from hf_posenc.files import write_bytes
from hf_posenc.markdown import markdown_table
from hf_posenc.schemes.plots import save_figure

from .parts import PARTS


def results_table(results: dict[str, Any]) -> str:
    """The table of what a command of the benchmark measured."""
    return _table_of(results)(results)


def _table_of(results: dict[str, Any]) -> Callable[[dict[str, Any]], str]:
    if "seconds" in results:
        return startup_table
    return serving_table if "reference" in results["settings"] else speed_table


def startup_table(results: dict[str, Any]) -> str:
    """The results of `measure_startup` as a table."""
    return markdown_table(("", "seconds"), [(name, f"{taken:.2f}") for name, taken in results["seconds"].items()])


def speed_table(results: dict[str, Any]) -> str:
    """The results of `run_benchmark` as a table; below it who was left out, `profile_table`, `targets_table`."""
    first = results["settings"]["contenders"][0]
    head = ["size", "batch", "mode", "encoder", "ms", f"times as fast as {first}", "time of `none` x", "real tokens/s"]
    head += ["peak MB", "share of the linear layers"]
    counted = any("tflops" in row for row in results["rows"])
    rows = []
    for row in results["rows"]:
        cost = "" if row["cost"] is None else f"{row['cost']:.2f}"
        name = row["contender"] + ("" if row["dtype"] == "float32" else f" ({row['dtype']})")
        numbers = [f"{row['milliseconds']:.0f}", f"{row['ratio']:.2f}", cost, f"{row['tokens_per_second']:,}"]
        numbers += ["" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"]
        numbers += [f"{row['linear_share']:.0%}" if "linear_share" in row else ""]
        numbers += [f"{row['tflops']:.2f}"] if counted else []
        rows.append([row["size"], row["work"], row["mode"], name, *numbers])
    parts = [markdown_table([*head, "TFLOP/s"] if counted else head, rows, align="llllrrrrrr" + "r" * counted)]
    for row in results.get("left_out", ()):
        parts.append(f"`{row['contender']}` is left out of {row['size']} {row['work']} {row['mode']}: {row['why']}")
    if any("parts" in row for row in results["rows"]):
        parts.append(profile_table(results))
    if "targets" in results:
        parts.append(targets_table(results))
    return "\n\n".join(parts)


def serving_table(results: dict[str, Any]) -> str:
    """The results of `run_serving` as a table, below it who was left out, and the targets."""
    settings = results["settings"]
    head = ["work", "model:runtime:precision", "ms", "texts/s", f"times as fast as {settings['reference']}"]
    head += ["share of the linear layers", "accuracy", "agreement with float32"]
    rows = []
    for row in results["rows"]:
        share, score = row["linear_share"], row["accuracy"]
        numbers = (f"{row['milliseconds']:.1f}", f"{row['texts_per_second']:,}", f"{row['ratio']:.2f}")
        quality = ("" if score is None else f"{score:.4f}", f"{row['agreement']:.4f}")
        rows.append((row["work"], row["contender"], *numbers, "" if share is None else f"{share:.0%}", *quality))
    parts = [markdown_table(head, rows, align="llrrrrrr")]
    parts += [f"`{row['contender']}` is left out: {row['why']}" for row in results["left_out"]]
    return "\n\n".join([*parts, targets_table(results)])


def targets_table(results: dict[str, Any]) -> str:
    """What `judge` says of each target."""
    rows = [
        (row["target"], "" if row["value"] is None else f"{row['value']:.2f}", row["bound"], row["outcome"])
        for row in results["targets"]
    ]
    return markdown_table(("target", "measured", "wanted", "outcome"), rows, align="lrrl")


def profile_table(results: dict[str, Any]) -> str:
    """Where the time goes, in percent: a row for each size, work, mode and contender that was profiled."""
    rows = [row for row in results["rows"] if "parts" in row]
    parts = [part for part in (*PARTS, "other") if any(row["parts"][part] for row in rows)]
    shares = []
    for row in rows:
        total = sum(row["parts"].values())
        percent = (f"{row['parts'][part] / total:.0%}" for part in parts)
        shares.append([f"{row['size']} {row['work']}", row["mode"], f"`{row['contender']}`", *percent])
    return markdown_table(["batch", "mode", "encoder", *parts], shares)


def plot_results(results: dict[str, Any]) -> Any:
    """A matplotlib figure: times as fast as the first contender, a panel for each size, work and mode."""
    from matplotlib.figure import Figure

    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        groups.setdefault((row["size"], row["work"], row["mode"]), []).append(row)
    figure = Figure(
        figsize=(7, (0.3 * len(results["settings"]["contenders"]) + 0.8) * len(groups)), layout="constrained"
    )
    for axes, (title, rows) in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups.items(), strict=True):
        bars = axes.barh([row["contender"] for row in rows], [row["ratio"] for row in rows], color="#4477aa")
        axes.bar_label(bars, fmt="%.2f", padding=2)
        axes.margins(x=0.1)  # room for the labels
        axes.axvline(1, color="black", linewidth=0.8)
        axes.invert_yaxis()
        axes.set_title(" ".join(title), fontsize="medium")
        axes.set_xlabel(f"times as fast as {rows[0]['contender']}")
    return figure


def write_results(results: dict[str, Any], path: str | Path) -> list[Path]:
    """Writes PATH (.json), and beside it the table (.md) and, where matplotlib is installed, the plot (.png)."""
    path = Path(path)
    check_path(path)
    table, plot = path.with_suffix(".md"), path.with_suffix(".png")
    write_bytes(path, (json.dumps(results, indent=1) + "\n").encode())
    write_bytes(table, (results_table(results) + "\n").encode())
    if _table_of(results) is not speed_table:
        return [path, table]
    try:
        save_figure(plot_results(results), plot)
    except ImportError:
        return [path, table]
    return [path, table, plot]


def check_path(path: str | Path) -> None:
    """Refuses a path that results can't be written to.

    Raises:
        UserError: it doesn't end in .json.
    """
    if Path(path).suffix != ".json":
        raise UserError(f"{str(path)!r} doesn't end in .json. The table and the plot go beside it.")
