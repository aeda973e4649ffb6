"""The measured study of conversions, on real weights: all-MiniLM-L6-v2 under other schemes.

    python -m model_cards.studies.conversion --data FOLDER --minilm FOLDER --output model_cards/results/conversion.json

Parts, each written into the result as it ends; an interrupted study resumes with the next one:

- `exact`: conversion to `learned`, against transformers' BERT; a classifier fine-tuned from either.
- `swap/SCHEME`, `heal/SCHEME`: agreement with the original on unseen text, without and with healing. The models stay in
  WORK/SCHEME, beside `learned`: `hf-posenc compare --plan practitioner_pretrained` fine-tunes from there.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import matthews_corrcoef
from transformers import (
    AutoTokenizer,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_posenc.conversion import convert
from hf_posenc.conversion.measure import encode
from hf_posenc.errors import run_script
from hf_posenc.markdown import markdown_table
from model_cards.studies.parts import NAME, Parts, data_folder, find_minilm, options_of, read_rows, run_study

SCHEMES = ("none", "lspe", "rope", "alibi", "alibi+t5", "t5")
AS_THEY_ARE = ("lspe",)
"""Schemes that can express the table, and aren't healed."""


def fine_tune(
    make: Callable[[int], PreTrainedModel],
    tokenizer: Any,
    data: Path,
    name: str,
    *,
    max_train: int = 10000,
    epochs: float = 3,
    work: str,
) -> dict[str, Any]:
    """Fine-tunes a classifier with the stock Trainer, and tests it: metrics on the test split.

    Args:
        make: number of labels -> the model.
        tokenizer: cuts texts to 128 tokens.
        data: the folder of the data sets.
        name: of the set.
        max_train: so many training examples, the first ones, at most.
        epochs: over them.
        work: the Trainer's folder.
    """
    training, test = read_rows(data, name, "train")[:max_train], read_rows(data, name, "test")
    labels = sorted({str(row["label"]) for row in training})

    def encoded(rows: list[dict[str, Any]]) -> Any:
        inputs = encode(tokenizer, [row["text"] for row in rows], 128)
        return [
            {**encoding, "labels": labels.index(str(row["label"]))} for encoding, row in zip(inputs, rows, strict=True)
        ]

    set_seed(0)
    trainer = Trainer(
        model=make(len(labels)),
        args=TrainingArguments(
            output_dir=work,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            learning_rate=1e-4,
            warmup_steps=0.1,
            seed=0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=encoded(training),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=_metrics,
    )
    seconds = trainer.train().metrics["train_runtime"]
    scores = trainer.evaluate(encoded(test))
    counts = {"train_examples": len(training), "test_examples": len(test), "seconds": round(seconds, 1)}
    return counts | {name: round(scores[f"eval_{name}"], 5) for name in ("accuracy", "matthews", "loss")}


def _metrics(prediction: EvalPrediction) -> dict[str, float]:
    chosen = np.asarray(prediction.predictions).argmax(-1)
    return {
        "accuracy": float((chosen == prediction.label_ids).mean()),
        "matthews": float(matthews_corrcoef(prediction.label_ids, chosen)),
    }


class Study:
    """The parts, their results so far, and where they are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.source, self.data = options, find_minilm(options.minilm), data_folder(options)
        self.work, self.part = Path(options.work), Parts(options.output, options.parts).measure
        self.tokenizer = AutoTokenizer.from_pretrained(str(self.source))

    def run(self) -> None:
        """All parts, in order."""
        self.part("exact/agreement", self.exact)
        for name in ("stock", "converted"):
            self.part(f"exact/fine-tuned/{name}", lambda name=name: self.same_start(name))  # type: ignore[misc]
        for scheme in self.options.schemes:
            self.part(f"swap/{scheme}/agreement", lambda s=scheme: self.swap(s, healed=False))  # type: ignore[misc]
            if scheme not in AS_THEY_ARE:
                self.part(f"heal/{scheme}/agreement", lambda s=scheme: self.swap(s, healed=True))  # type: ignore[misc]

    def exact(self) -> dict[str, Any]:
        """Hidden states of the conversion to `learned`, against transformers' own."""
        texts = [row["text"] for row in read_rows(self.data, "sst2", "test")]
        long = [" ".join(texts[start : start + 30]) for start in range(0, 240, 30)]  # up to the end of the table
        self.work.mkdir(parents=True, exist_ok=True)
        _, report = convert(self.source, self.work / "learned", eval_texts=[*texts[:48], *long], overwrite=True)
        return {**report.to_dict(), "source": NAME}

    def same_start(self, name: str) -> dict[str, Any]:
        """A classifier with the same first weights and no dropout, fine-tuned as BERT or as PosEnc."""
        quiet: dict[str, Any] = {
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "classifier_dropout": 0.0,
        }

        def make(labels: int) -> PreTrainedModel:
            stock = BertForSequenceClassification.from_pretrained(str(self.source), num_labels=labels, **quiet)
            if name == "stock":
                return stock
            folder = self.work / "same-start"
            stock.save_pretrained(folder)
            return convert(folder, measure=False)[0]

        options = {"max_train": self.options.max_train, "epochs": self.options.epochs}
        return fine_tune(make, self.tokenizer, self.data, "trec", work=str(self.work / "trainer"), **options)

    def swap(self, scheme: str, healed: bool) -> dict[str, Any]:
        """The report of a swap, on text from elsewhere than the healing's."""
        texts = [row["text"] for row in read_rows(self.data, "sst2", "test")]
        heal = None
        if healed:
            heal = [row["text"] for row in read_rows(self.data, "bshift_novels", "train") if row["label"] == "original"]
        self.work.mkdir(parents=True, exist_ok=True)
        _, report = convert(
            self.source,
            self.work / scheme if healed or scheme in AS_THEY_ARE else None,
            position_embedding_type=scheme,
            eval_texts=texts,
            heal=heal,
            max_steps=self.options.max_steps if healed else None,
            bf16=self.options.bf16 if healed else None,
            overwrite=True,
        )
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
    parser.add_argument("--max-steps", type=int, help="of each healing; default: that of `convert`")
    parser.add_argument("--bf16", action="store_true", help="heal in mixed precision")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--max-train", type=int, default=2000, help="training examples of a task, at most")
    run_study(parser.parse_args(arguments), Study, table)


if __name__ == "__main__":
    run_script(main)
