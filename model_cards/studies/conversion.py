"""The measured study of conversions, on real weights: all-MiniLM-L6-v2 under other schemes.

    python -m model_cards.studies.conversion --data FOLDER --minilm FOLDER --output model_cards/results/conversion.json

Parts, each written into the result as it ends; an interrupted study resumes with the next one:

- `exact`: conversion to `learned`, against transformers' BERT.
- `swap/SCHEME`, `heal/SCHEME`: agreement with the original on unseen text, without and with healing. The models stay in
  WORK/SCHEME, beside `learned`: `hf-posenc compare --plan practitioner_pretrained` fine-tunes from there.
"""

import argparse
import functools
from pathlib import Path
from typing import Any

from hf_posenc.conversion import Healing, convert
from hf_posenc.errors import run_script
from hf_posenc.markdown import markdown_table
from model_cards.studies.parts import NAME, Parts, data_folder, find_minilm, options_of, read_rows, run_study

SCHEMES = ("none", "lspe", "rope", "alibi", "alibi+t5", "t5")
AS_THEY_ARE = ("lspe",)
"""Schemes that can express the table, and aren't healed."""


class Study:
    """The parts, and where their results are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.source, self.data = options, find_minilm(options.minilm), data_folder(options)
        self.work, self.parts = Path(options.work), Parts(options)

    def run(self) -> None:
        """All parts, in order."""
        measure = functools.partial(self.parts.measure, max_steps=self.options.max_steps, bf16=self.options.bf16)
        measure("exact/agreement", self.exact)
        for scheme in self.options.schemes:
            measure(f"swap/{scheme}/agreement", functools.partial(self.swap, scheme, healed=False))
            if scheme not in AS_THEY_ARE:
                measure(f"heal/{scheme}/agreement", functools.partial(self.swap, scheme, healed=True))

    def exact(self) -> dict[str, Any]:
        """Hidden states of the conversion to `learned`, against transformers' own."""
        texts = [row["text"] for row in read_rows(self.data, "sst2", "test")]
        long = [" ".join(texts[start : start + 30]) for start in range(0, 240, 30)]  # up to the end of the table
        texts = [*texts[:48], *long]
        report = convert(self.source, self.work / "learned", eval_texts=texts, overwrite=True, seed=0).report
        return {**report.to_dict(), "source": NAME}

    def swap(self, scheme: str, healed: bool) -> dict[str, Any]:
        """The report of a swap, on text from elsewhere than the healing's."""
        texts = [row["text"] for row in read_rows(self.data, "sst2", "test")]
        healing = None
        if healed:
            rows = read_rows(self.data, "bshift_novels", "train")
            original = [row["text"] for row in rows if row["label"] == "original"]
            healing = Healing(original, max_steps=self.options.max_steps, bf16=self.options.bf16)
        report = convert(
            self.source,
            self.work / scheme if healed or scheme in AS_THEY_ARE else None,
            scheme=scheme,
            eval_texts=texts,
            healing=healing,
            overwrite=True,
            seed=0,
        ).report
        return {**report.to_dict(), "source": NAME}


def table(results: dict[str, Any]) -> str:
    """The swaps of a study as a markdown table: agreement with the original, without and with healing."""
    parts = results["parts"]
    rows = []
    for scheme in dict.fromkeys(name.split("/")[1] for name in parts if name.startswith(("swap/", "heal/"))):
        cells = [f"`{scheme}`"]
        for kind in ("swap", "heal"):
            measured = parts.get(f"{kind}/{scheme}/agreement", {})
            near = measured.get("after") or measured.get("before") or {}
            cells += [f"{round(near[name], 3) + 0.0:.3f}" if name in near else "" for name in ("cosine", "order_r2")]
        rows.append(cells)
    head = ("", "cosine", "swapped tokens, R²", "cosine, healed", "swapped tokens, R², healed")
    return markdown_table(head, rows)


def main(arguments: list[str] | None = None) -> None:
    """The command line of the study."""
    parser = options_of(__doc__, "conversion")
    parser.add_argument("--work", default="runs/conversion", help="folder of the models in between")
    parser.add_argument("--schemes", nargs="*", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--max-steps", type=int, default=Healing.max_steps, help="of each healing")
    parser.add_argument("--bf16", action="store_true", help="heal in mixed precision")
    run_study(parser.parse_args(arguments), Study, table)


if __name__ == "__main__":
    run_script(main)
