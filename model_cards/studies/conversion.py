"""The measured study of conversions, on real weights: all-MiniLM-L6-v2 under other schemes.

    python -m model_cards.studies.conversion --data FOLDER --minilm FOLDER --output model_cards/results/conversion.json

Parts, each written into the result as it ends; an interrupted study resumes with the next one:

- `extend/WHAT` for `majority`, `words` and `word pairs` (TF-IDF, logistic regression): what has to be beaten, on the
  rows and tokens of the others. Seconds: `--parts extend/majority extend/word`.
- `exact`: conversion to `learned`, against transformers' BERT; a classifier fine-tuned from either.
- `swap/SCHEME`, `heal/SCHEME`: agreement with the original on unseen text, without and with healing. The models stay in
  WORK/SCHEME, beside `learned`: `hf-posenc compare --plan practitioner_pretrained` fine-tunes from there.
- `extend/HOW`: from 512 to 2,048 tokens, on long documents, fine-tuned and tested at both lengths. Without dropout of
  attention, which takes the fused kernels away: so does `extend/stock`.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.metrics import accuracy_score, matthews_corrcoef
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

from hf_posenc import PosEncForSequenceClassification
from hf_posenc.conversion import convert
from hf_posenc.conversion.measure import encode
from hf_posenc.errors import run_script
from hf_posenc.markdown import markdown_table
from hf_posenc.training.metrics import fit_words
from model_cards.studies.parts import NAME, Parts, data_folder, find_minilm, options_of, read_rows, run_study

SCHEMES = ("none", "lspe", "rope", "alibi", "alibi+t5", "t5")
AS_THEY_ARE = ("lspe",)
"""Schemes that can express the table, and aren't healed."""
LONG = ("hyperpartisan", "review_polarity")
LENGTHS = (512, 2048)
BASELINES = ("majority", "words", "word pairs")
EXTENSIONS: dict[str, dict[str, Any]] = {
    "learned-tile": {"extension": "tile"},
    "learned-interpolate": {"extension": "interpolate"},
    "rope-default": {"source": "rope"},
    "rope-linear": {"source": "rope", "extension": "linear"},
    "rope-dynamic": {"source": "rope", "extension": "dynamic"},
    "rope-yarn": {"source": "rope", "extension": "yarn"},
    "alibi": {"source": "alibi"},
    "t5": {"source": "t5"},
}


def fine_tune(
    make: Callable[[int], PreTrainedModel],
    tokenizer: Any,
    data: Path,
    name: str,
    *,
    max_length: int = 128,
    test_lengths: tuple[int, ...] = (),
    max_train: int | None = 10000,
    epochs: float = 3,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    seed: int = 0,
    bf16: bool = False,
    work: str,
) -> dict[str, Any]:
    """Fine-tunes a classifier with the stock Trainer, and tests it: metrics on the test split.

    Args:
        make: number of labels -> the model.
        test_lengths: test at these lengths. None given: at `max_length`.
        max_train: so many training examples, the first ones, at most.
        bf16: mixed precision.
    """
    training, test = read_rows(data, name, "train")[:max_train], read_rows(data, name, "test")
    labels = sorted({str(row["label"]) for row in training})

    def encoded(rows: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
        inputs = encode(tokenizer, [row["text"] for row in rows], length)
        return [
            {**encoding, "labels": labels.index(str(row["label"]))} for encoding, row in zip(inputs, rows, strict=True)
        ]

    set_seed(seed)
    model = make(len(labels))
    arguments = TrainingArguments(
        output_dir=work,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        learning_rate=learning_rate,
        warmup_steps=0.1,
        seed=seed,
        bf16=bf16,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=cast(Any, encoded(training, max_length)),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=_metrics,
    )
    started = time.time()
    trainer.train()
    seconds = time.time() - started
    figures: dict[str, Any] = {
        "train_examples": len(training),
        "test_examples": len(test),
        "seconds": round(seconds, 1),
    }
    for length in test_lengths or (max_length,):
        scores = trainer.evaluate(cast(Any, encoded(test, length)))
        prefix = f"at_{length}_" if test_lengths else ""
        figures |= {f"{prefix}{name}": round(scores[f"eval_{name}"], 5) for name in ("accuracy", "matthews", "loss")}
    return figures


def baseline(
    what: str, tokenizer: Any, data: Path, name: str, *, max_length: int = 128, max_train: int | None = 10000
) -> dict[str, Any]:
    """`majority`, `words` or `word pairs`, on the rows of `fine_tune` and the tokens that a model reads."""
    training, test = read_rows(data, name, "train")[:max_train], read_rows(data, name, "test")
    answers, labels = ([str(row["label"]) for row in rows] for rows in (training, test))
    if what == "majority":
        predicted = [Counter(answers).most_common(1)[0][0]] * len(test)
    else:
        seen, asked = (
            tokenizer.batch_decode(
                [encoding["input_ids"] for encoding in encode(tokenizer, [row["text"] for row in rows], max_length)],
                skip_special_tokens=True,
            )
            for rows in (training, test)
        )
        predicted = list(fit_words([seen], answers, what).predict([asked]))
    return {
        "train_examples": len(training),
        "test_examples": len(test),
        "accuracy": round(accuracy_score(labels, predicted), 5),
        "matthews": round(matthews_corrcoef(labels, predicted), 5),
    }


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
        for what in BASELINES:
            for task in LONG:
                for length in LENGTHS:
                    self.part(
                        f"extend/{what}/{task}/{length}",
                        lambda w=what, t=task, n=length: self.baseline(w, t, n, self.options.max_long),  # type: ignore[misc]
                    )
        self.part("exact/agreement", self.exact)
        for name in ("stock", "converted"):
            self.part(f"exact/fine-tuned/{name}", lambda name=name: self.same_start(name))  # type: ignore[misc]
        for scheme in self.options.schemes:
            self.part(f"swap/{scheme}/agreement", lambda s=scheme: self.swap(s, healed=False))  # type: ignore[misc]
            if scheme not in AS_THEY_ARE:
                self.part(f"heal/{scheme}/agreement", lambda s=scheme: self.swap(s, healed=True))  # type: ignore[misc]
        for task in LONG if self.options.extensions else ():
            self.part(f"extend/stock/{task}/512", lambda t=task: self.extend("stock", t, 512))  # type: ignore[misc]
        for how in self.options.extensions:
            for task in LONG:
                for length in LENGTHS:
                    self.part(
                        f"extend/{how}/{task}/{length}",
                        lambda h=how, t=task, n=length: self.extend(h, t, n),  # type: ignore[misc]
                    )

    def exact(self) -> dict[str, Any]:
        """Hidden states of the conversion to `learned`, against transformers' own."""
        texts = [row["text"] for row in read_rows(self.data, "sst2", "test")]
        long = [" ".join(texts[start : start + 30]) for start in range(0, 240, 30)]  # up to the end of the table
        self.work.mkdir(parents=True, exist_ok=True)
        _, report = convert(self.source, self.work / "learned", eval_texts=[*texts[:48], *long], overwrite=True)
        return {**report.to_dict(), "source": NAME}

    def baseline(self, what: str, task: str, length: int = 128, rows: int | None = None) -> dict[str, Any]:
        """What has to be beaten, on a task's rows."""
        most = rows or self.options.max_train
        return baseline(what, self.tokenizer, self.data, task, max_length=length, max_train=most)

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

        return self._tune(make, "trec")

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

    def extend(self, how: str, task: str, length: int) -> dict[str, Any]:
        """Long documents, fine-tuned and tested at one length."""
        settings = dict(EXTENSIONS.get(how, {}))
        scheme = settings.pop("source", None)
        source = self.source if scheme is None else self._healed(scheme)

        def make(labels: int) -> PreTrainedModel:
            if how == "stock":
                return self._stock(labels, attention_probs_dropout_prob=0.0)
            folder, options = self.work / "extended", {"max_position_embeddings": 2048, **settings}
            convert(source, folder, task="text-classification", measure=False, overwrite=True, **options)
            shapes: dict[str, Any] = {"num_labels": labels, "ignore_mismatched_sizes": True}
            model = PosEncForSequenceClassification.from_pretrained(folder, **shapes)
            for layer in cast(Any, model.base_model).layers:
                layer.attention.dropout.p = 0.0
            return model

        options = {"max_train": self.options.max_long, "epochs": self.options.epochs_long, "bf16": self.options.bf16}
        return self._tune(make, task, max_length=length, batch_size=8, learning_rate=5e-5, **options)

    def _tune(self, make: Callable[[int], PreTrainedModel], task: str, **options: Any) -> dict[str, Any]:
        settings = {"max_train": self.options.max_train, "epochs": self.options.epochs, **options}
        return fine_tune(make, self.tokenizer, self.data, task, work=str(self.work / "trainer"), **settings)

    def _stock(self, labels: int, **config: Any) -> PreTrainedModel:
        return BertForSequenceClassification.from_pretrained(str(self.source), num_labels=labels, **config)

    def _healed(self, scheme: str) -> Path:
        folder = self.work / scheme
        if not (folder / "config.json").is_file():  # another machine measured the agreement
            self.swap(scheme, healed=True)
        return folder


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


def long_table(results: dict[str, Any]) -> str:
    """The long documents of a study as a markdown table: accuracy at each length, first what has to be beaten."""
    parts = results.get("parts", {})
    names = {what: what for what in BASELINES} | {"stock": "stock BERT"} | {how: f"`{how}`" for how in EXTENSIONS}
    ways = [how for how in names if any(name.startswith(f"extend/{how}/") for name in parts)]
    rows = []
    for how in ways:
        measured = [parts.get(f"extend/{how}/{task}/{length}") for task in LONG for length in LENGTHS]
        rows.append((names[how], *("" if figures is None else f"{figures['accuracy']:.3f}" for figures in measured)))
    return markdown_table(("", *(f"{task}, {length}" for task in LONG for length in LENGTHS)), rows)


def long_words(results: dict[str, Any]) -> str:
    """What `long_table` carries, before which this stands: who wins, and how wide a score's interval is."""
    parts, sentences, widths = results["parts"], [], []
    for task in LONG:
        by_way: dict[str, list[float]] = {}  # by way, for each length
        for name, part in parts.items():
            if name.startswith("extend/") and f"/{task}/" in name:
                by_way.setdefault(name.split("/")[1], []).append(part["accuracy"])
        linear, beaten = max((max(by_way[way]), way) for way in BASELINES[1:])
        best = max(max(by_way[way]) for way in by_way if way not in BASELINES)
        count = parts[f"extend/word pairs/{task}/512"]["test_examples"]
        widths.append(f"{1.96 * (best * (1 - best) / count) ** 0.5:.2f} on `{task}` ({count} documents)")
        verb = "win" if linear >= best else "are behind"
        sentences.append(
            f"{beaten.capitalize()} {verb} on `{task}` with {linear:.3f}; the best encoder has {best:.3f}."
        )
    return " ".join(sentences) + f"\nOne seed; the 95 % interval of one score is about ±{' and ±'.join(widths)}."


def main(arguments: list[str] | None = None) -> None:
    """The command line of the study."""
    parser = options_of(__doc__, "conversion")
    parser.add_argument("--work", default="runs/conversion", help="folder of the models in between")
    parser.add_argument("--schemes", nargs="*", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--max-steps", type=int, help="of each healing; default: that of `convert`")
    parser.add_argument("--bf16", action="store_true", help="heal, and read long documents, in mixed precision")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--max-train", type=int, default=2000, help="training examples of a task, at most")
    parser.add_argument("--max-long", type=int, default=450, help="the same, of long documents")
    parser.add_argument("--epochs-long", type=float, default=3, help="the same, of long documents")
    parser.add_argument("--extensions", nargs="*", choices=list(EXTENSIONS), default=list(EXTENSIONS))
    run_study(parser.parse_args(arguments), Study, table, long_table)


if __name__ == "__main__":
    run_script(main)
