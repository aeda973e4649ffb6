#!/usr/bin/env python
"""Labels the texts of files on several processes or machines, with Ray Data.

pip install -e ".[ray]"
python examples/ray_predict.py --checkpoint runs/mine --input texts.parquet --output labelled --actors 2
python examples/ray_predict.py --checkpoint /shared/mine-openvino --input /shared/texts --output /shared/labelled \
    --actors 32 --address auto      # on a running cluster, whose machines have hf_posenc and see these folders

Each actor loads the model once. The output is a folder of parquet files with all columns and those that `hf-posenc
predict` writes, and rows in any order. An actor that dies is replaced and its rows are answered again: each comes out
once. The files appear when all rows are in them, or not at all. Of each row the columns `truncated` and `empty` say
whether its text was cut and whether one was empty; at the end a line each says how many.
"""

import argparse
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}  # read by the import that follows

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray

from hf_posenc.checkpoints.keeper import OutputFolder, output_folder
from hf_posenc.data.columns import Columns, as_input
from hf_posenc.errors import UserError, run_script
from hf_posenc.finetuning.prediction import Asked, answers_to, flat_answer, load_classifier, with_answers
from hf_posenc.inference.windows import remarks_on_long

READERS = {".parquet": ray.data.read_parquet, ".jsonl": ray.data.read_json}


class Labeller:
    """An actor's model, and what it makes of a batch of rows."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.classifier = load_classifier(options.checkpoint, backend=options.backend)
        self.columns, self.asked = options.columns, Asked(batch_size=options.batch_size)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The rows with the columns of their answers."""
        texts = [as_input(cells, self.columns) for cells in rows.select(self.columns.text).to_pylist()]
        long: dict[int, int] = {}
        given = list(answers_to(self.classifier, texts, self.asked, long=long))
        flat = [flat_answer(answer, self.classifier.known.label_names) for answer in given]
        for row, parts in enumerate(texts):
            flat[row] |= {"truncated": row in long, "empty": not all(map(str.strip, parts))}
        return with_answers(rows, flat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--input", required=True, help="a .parquet or .jsonl file, or a folder of .parquet files")
    parser.add_argument("--output", required=True, help="a new or an empty folder")
    parser.add_argument("--text-columns", nargs="+", help="as many as it was trained on; default: these, else text")
    parser.add_argument("--actors", type=int, default=2, help="each holds a copy of the model")
    parser.add_argument("--batch-size", type=int, default=64, help="texts per forward pass")
    parser.add_argument("--backend", help="torch, onnx or openvino; default: as of hf-posenc predict")
    parser.add_argument("--address", default="local", help="of a Ray cluster; default: Ray on this machine alone")
    options = parser.parse_args()
    source, output, started = Path(options.input).resolve(), Path(options.output).resolve(), time.time()
    options.checkpoint = str(Path(options.checkpoint).resolve())  # an actor works in another folder
    if not source.exists() or kind_of(source) not in READERS:
        raise UserError(f"--input {options.input!r} can't be read. Give a folder, or a {', '.join(READERS)} file.")
    check = partial(OutputFolder.refuse_taken, way_out="empty it")
    with output_folder(output, check=check) as folder:
        count, doubts = label(options, source, folder)
    seconds = f"{time.time() - started:.0f} s"
    print(f"{count:,} rows of {options.input} are in {output}: {options.actors} actors, {options.backend}, {seconds}")
    for doubt in doubts:
        print(f"Warning: {doubt}")


def kind_of(source: Path) -> str:
    """The suffix that says how a file is read, of a folder that of the files in it."""
    return ".parquet" if source.is_dir() else source.suffix


def columns_of(trained: Columns | None, named: list[str] | None) -> Columns:
    """The columns to read: those that the model was trained on, joined as there, by their names or by others."""
    if not named:
        return trained or Columns(("text",))
    if trained is not None and len(named) != len(trained.text):
        raise UserError(f"--text-columns names {len(named)} columns, and it was trained on {', '.join(trained.text)}.")
    if trained is None and len(named) > 2:
        raise UserError(f"--text-columns names {len(named)} columns. Name one, or two for pairs.")
    return Columns(tuple(named)) if trained is None else replace(trained, text=tuple(named))


def label(options: argparse.Namespace, source: Path, folder: OutputFolder) -> tuple[int, list[str]]:
    """Labels all rows into a folder that is locked; returns how many they are, and what to doubt."""
    classifier = load_classifier(options.checkpoint, backend=options.backend)  # what is wrong with it shows now
    options.backend = classifier.backend
    options.columns = columns_of(classifier.known.columns, options.text_columns)

    # Beside the actors, each with a processor, one reads and writes. Texts are small: so is the store.
    local = {"num_cpus": options.actors + 1, "include_dashboard": False, "object_store_memory": 2**29}
    ray.init(options.address, **(local | {"_node_ip_address": "127.0.0.1"} if options.address == "local" else {}))
    ray.data.DataContext.get_current().enable_progress_bars = sys.stderr.isatty()
    rows = READERS[kind_of(source)](str(source))
    kinds = dict(zip(rows.schema().names, rows.schema().types, strict=True))
    for name in options.columns.text:
        if name not in kinds or pa.types.is_nested(kinds[name]):
            raise UserError(f"--input {options.input!r} has no text in column {name!r}. Name another: --text-columns.")
    try:
        block = 32 * options.batch_size  # texts of like lengths among so many share a forward pass
        pool = ray.data.ActorPoolStrategy(size=options.actors)
        with folder.replaced() as new:
            rows.repartition(target_num_rows_per_block=block).map_batches(
                Labeller, fn_constructor_args=[options], compute=pool, batch_size=block, batch_format="pyarrow"
            ).write_parquet(str(new))
            files = [pq.read_table(path, columns=["truncated", "empty"]) for path in new.glob("*.parquet")]
    finally:
        ray.shutdown()
    cut, empty = (sum(pc.sum(file[name]).as_py() for file in files) for name in ("truncated", "empty"))
    doubts = remarks_on_long(range(cut), classifier.tokenizer, None)[1]
    if empty:
        doubts.append(f"{options.input}: {empty:,} empty, and answered all the same: such an answer means nothing.")
    return sum(file.num_rows for file in files), doubts


if __name__ == "__main__":
    run_script(main)
