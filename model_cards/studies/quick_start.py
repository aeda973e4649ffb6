"""The quick start over several seeds: mean and spread of the test accuracies, and what has to be beaten.

    python -m model_cards.studies.quick_start --output-dir runs/seeds --seeds 0 1 2 3 4
    python -m model_cards.studies.quick_start --baselines model_cards/results/quickstart.json

The second line measures the baselines alone anew, in seconds.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hf_posenc.data.prepared import Use
from hf_posenc.data.preparing import prepare
from hf_posenc.data.splits import read_splits
from hf_posenc.errors import run_script
from hf_posenc.files import write_json
from hf_posenc.finetuning import make_arguments, quickstart
from hf_posenc.finetuning.quick_start import OPTIONS, SCHEMES
from hf_posenc.training.baseline import baseline_scores


def measure_baselines(options: dict[str, Any] | None = None) -> dict[str, float]:
    """Test accuracy of the baselines `majority` and `word_pairs` on the same rows."""
    data = make_arguments(**{**OPTIONS, **(options or {}), "output_dir": "unused"})[0]
    prepared = prepare(read_splits(data), data, Use(test=True, score_test=True))
    train, test = ((part.texts, part.labels or []) for part in (prepared.splits["train"], prepared.splits["test"]))
    scores = baseline_scores(train, {"test": test}, "single_label_classification")
    return {name: found["test_accuracy"] for name, found in scores.items()}


def measure_seeds(
    output_dir: str | Path,
    schemes: Sequence[str] = SCHEMES,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    *,
    overwrite_output_dir: bool = False,
    options: dict[str, Any] | None = None,
    console: Console | None = None,
) -> dict[str, dict[str, Any]]:
    """Runs the quick start once per seed and reports mean and spread of the test accuracies.

    Returns:
        For each scheme `accuracies` by seed, `mean`, `std` (of the sample), `min`, `max`; also in `seeds.json`, with
        `baselines`.
    """
    console = console or Console()
    found: dict[str, list[float]] = {scheme: [] for scheme in schemes}
    for seed in seeds:
        for result in quickstart(
            Path(output_dir) / f"seed-{seed}",
            schemes,
            seed,
            overwrite_output_dir=overwrite_output_dir,
            options=options,
            console=console,
        ):
            found[result.scheme].append(result.accuracy)
    report = {
        scheme: {
            "accuracies": values,
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            "min": min(values),
            "max": max(values),
        }
        for scheme, values in found.items()
    }
    given = {"seeds": list(seeds), "options": {**OPTIONS, **(options or {})}}
    baselines = measure_baselines(options)
    write_json(Path(output_dir) / "seeds.json", {**given, "baselines": baselines, **report})
    table = Table("positions", "mean", "std", "min", "max", title=f"Test accuracy over {len(seeds)} seeds")
    table.add_row("word pairs", f"{baselines['word_pairs']:.3f}", style="dim", end_section=True)
    for scheme, numbers in report.items():
        table.add_row(scheme, *(f"{numbers[name]:.3f}" for name in ("mean", "std", "min", "max")))
    console.print(table)
    return report


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="runs/seeds", help="where the checkpoints go (default: runs/seeds)")
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), help="positional schemes")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], help="default: 0 1 2 3 4")
    parser.add_argument("--overwrite-output-dir", action="store_true", help="replace checkpoints that are there")
    parser.add_argument("--baselines", type=Path, help="a seeds.json: measure its baselines anew, and train nothing")
    given = parser.parse_args()
    if given.baselines is None:
        measure_seeds(given.output_dir, given.schemes, given.seeds, overwrite_output_dir=given.overwrite_output_dir)
        return
    found = json.loads(given.baselines.read_text(encoding="utf-8"))
    first = {name: found.pop(name) for name in ("seeds", "options")}
    write_json(given.baselines, {**first, **found, "baselines": measure_baselines(first["options"])})


if __name__ == "__main__":
    run_script(main)
