"""The frozen values: how each is computed. `python tests/golden/golden.py` writes them anew.

The README beside this file says what is frozen, and what changes by design.
"""

import contextlib
import io
import json
import os
import random
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
)

import hf_posenc
from hf_posenc import cli
from tests.support.common import write_csv

HERE = Path(__file__).parent
LOGITS, VALUES, CHECKPOINT = HERE / "logits.safetensors", HERE / "values.json", HERE / "checkpoint"

SCHEMES = ("learned", "rope", "t5", "lspe", "rope+deberta")
HEADS = ("SequenceClassification", "MaskedLM", "TokenClassification", "QuestionAnswering", "MultipleChoice")
SEQUENCES = [[3, 9, 14, 5, 11, 7, 20], [3, 8, 6, 19, 4], [3, 21, 10, 17, 12, 15, 5, 9, 16]]
LAYOUTS = ("right", "left", "packed")

ANIMALS, MOODS = ("cat", "dog", "owl", "fox", "hen", "cow"), ("calm", "happy", "angry", "tired", "proud", "shy")
FILLERS = ("the", "a", "near", "under", "tree", "then", "with", "green", "house", "and")
LABELS = ("first", "second")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


# ---- logits -------------------------------------------------------------------------------------------------------


def fill(model: torch.nn.Module) -> None:
    """Sets each weight to numbers that follow from its name and shape, whatever made the model."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            numbers = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(weight.shape)) * 0.2
            weight.copy_(torch.from_numpy(numbers.astype(np.float32) + float("norm.weight" in name.lower())))


def tiny(scheme: str, head: str) -> Any:
    """A model of two layers under a head, in eval mode; the same for each call."""
    config = hf_posenc.PosEncConfig(
        vocab_size=23,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        position_embedding_type=scheme,
        num_labels=3,
        classifier_hidden_act="tanh",
    )
    model = getattr(hf_posenc, f"PosEncFor{head}")(config)
    fill(model)
    return model.eval()


def batch(layout: str) -> dict[str, Tensor]:
    """The three sequences as a padded batch, or packed into one row."""
    if layout == "packed":
        places = [place for sequence in SEQUENCES for place in range(len(sequence))]
        return {
            "input_ids": torch.tensor([[token for sequence in SEQUENCES for token in sequence]]),
            "position_ids": torch.tensor([places]),
        }
    longest = max(map(len, SEQUENCES))
    rows, masks = [], []
    for sequence in SEQUENCES:
        padding, real = [0] * (longest - len(sequence)), [1] * len(sequence)
        rows.append(sequence + padding if layout == "right" else padding + sequence)
        masks.append(real + padding if layout == "right" else padding + real)
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}


@torch.no_grad()
def logits(scheme: str, head: str, layout: str) -> Tensor:
    """The logits at real tokens, in the order of the sequences: the same in each layout."""
    inputs, model = batch(layout), tiny(scheme, head)
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    if head == "MultipleChoice":
        return model(**{name: value[None] for name, value in inputs.items()}).logits
    outputs = model(**inputs)
    if head == "SequenceClassification":
        return outputs.logits
    if head != "QuestionAnswering":
        return outputs.logits[mask]
    scores = torch.stack((outputs.start_logits, outputs.end_logits), -1)
    if layout == "packed":  # a row per sequence
        return torch.cat([row[: len(sequence)] for row, sequence in zip(scores, SEQUENCES, strict=True)])
    return scores[mask]


def all_logits() -> dict[str, Tensor]:
    """Those of right padding; the other layouts must give the same."""
    return {f"{scheme}/{head}": logits(scheme, head, "right").contiguous() for scheme in SCHEMES for head in HEADS}


# ---- the command line ---------------------------------------------------------------------------------------------


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Different texts: the label is whether an animal comes before a mood; a word tells it three times in four."""
    draw, texts = random.Random(seed), {}
    while len(texts) < count:
        pair = [draw.choice(ANIMALS), draw.choice(MOODS)]
        label = draw.randrange(2)
        words = [draw.choice(FILLERS) for _ in range(draw.randrange(3, 9))]
        words += [("old", "very")[label]] * (draw.random() < 0.75)
        first, second = sorted(draw.sample(range(len(words) + 1), 2))
        words.insert(second, pair[1 - label])
        words.insert(first, pair[label])
        texts[" ".join(words)] = LABELS[label]
    return [{"text": text, "label": label} for text, label in texts.items()]


def write_data(folder: Path) -> dict[str, Path]:
    """Comma csv files with the columns text and label: training, validation and test rows, of which none is twice."""
    every, files, start = rows(160, seed=0), {}, 0
    for split, count in (("train", 96), ("validation", 32), ("test", 32)):
        files[split] = folder / f"{split}.csv"
        write_csv(files[split], every[start : start + count])
        start += count
    return files


def tokenizer() -> BertTokenizer:
    """A word-level tokenizer of the texts' words."""
    words = (*SPECIAL, *ANIMALS, *MOODS, *FILLERS, "old", "very")
    return BertTokenizer(vocab={word: number for number, word in enumerate(words)}, model_max_length=64)


def command(*words: object) -> str:
    """Runs `hf-posenc` with these words in this process; returns what it printed on standard output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        cli.app([str(word) for word in words], standalone_mode=False)
    return printed.getvalue()


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.05,
}
STEPS = 20


def trained(folder: Path) -> dict[str, Any]:
    """Trains `rope` for 20 steps: the loss of each step, and the test's loss and accuracy."""
    files = write_data(folder)
    tokenizer().save_pretrained(folder / "tokenizer")
    options = {
        "--data": files["train"],
        "--validation": files["validation"],
        "--test": files["test"],
        "--tokenizer": folder / "tokenizer",
        "--learning-rate": 2e-3,
        "--max-steps": STEPS,
        "--batch-size": 16,
        "--device": "cpu",
        "--seed": 1,
    }
    fields = {
        **SIZES,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "label_smoothing_factor": 0.0,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": STEPS,
    }
    words = [word for option in options.items() for word in option]
    words += [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    command("train", "-o", folder / "run", "--no-bf16", *words)
    results = json.loads((folder / "run" / "results.json").read_text())
    return {
        "losses": [entry["loss"] for entry in results["history"] if "loss" in entry],
        "test": {name: results["metrics"][f"test_{name}"] for name in ("loss", "accuracy")},
    }


def as_frozen(answers: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Labels, and probabilities of the label `first`, of what `predict` answers."""
    return {
        "labels": [answer["label"] for answer in answers],
        "first": [answer["probabilities"][LABELS[0]] for answer in answers],
    }


def evaluated(folder: Path) -> dict[str, float]:
    """`evaluate` of the committed checkpoint on the test rows."""
    scores = json.loads(command("evaluate", CHECKPOINT, "--data", write_data(folder)["test"], "--json"))
    return {name: scores[name] for name in ("accuracy", "macro_f1", "loss")}


def predicted(folder: Path, *options: object, checkpoint: Path = CHECKPOINT) -> list[dict[str, Any]]:
    """`predict` on the test rows: an answer for each."""
    target = folder / "answers.jsonl"
    command("predict", checkpoint, "--data", write_data(folder)["test"], "-o", target, *options)
    return [json.loads(line) for line in target.read_text().splitlines()]


@torch.no_grad()
def converted(folder: Path) -> list[list[float]]:
    """`convert` of a BERT with a classifier: the logits of eight texts."""
    words = tokenizer()
    theirs = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )
    fill(theirs)
    theirs.save_pretrained(folder / "bert")
    words.save_pretrained(folder / "bert")
    command("convert", folder / "bert", "-o", folder / "ours")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "ours").eval()
    texts = [row["text"] for row in rows(8, seed=1)]
    return model(
        **AutoTokenizer.from_pretrained(folder / "ours")(texts, padding=True, return_tensors="pt")
    ).logits.tolist()


def compared(folder: Path) -> dict[str, Any]:
    """The scores of a comparison's runs: two schemes, two seeds, 20 steps each."""
    write_data(folder)
    plan = {
        "tasks": [{"name": "order", "data": str(folder)}],
        "schemes": ["none", "rope"],
        "train_length": 32,
        "test_lengths": [32],
        "options": {
            "set": {**SIZES, "label_smoothing_factor": 0.0},
            "max_steps": STEPS,
            "learning_rate": 2e-3,
            "batch_size": 16,
            "device": "cpu",
        },
    }
    runs = {}
    for seed in (0, 1):  # each in a folder of its own: two seeds are too few for a test
        (folder / "plan.yaml").write_text(json.dumps({**plan, "seeds": [seed]}))
        command("compare", "--plan", folder / "plan.yaml", "-o", folder / f"results{seed}")
        for path in sorted((folder / f"results{seed}" / "runs").glob("*.json")):
            (row,) = json.loads(path.read_text())["rows"]
            runs[f"{path.stem.split('-')[1]} {seed}"] = row["score"]
    return dict(sorted(runs.items()))


def main() -> None:
    """Writes the frozen values, and the checkpoint that they are of."""
    torch.set_num_threads(1)  # sums are in one order, as in the tests
    save_file(all_logits(), LOGITS)
    values: dict[str, Any] = {}
    for name, compute in (("trained", trained), ("converted", converted), ("compared", compared)):
        with tempfile.TemporaryDirectory() as folder:
            values[name] = compute(Path(folder))
            if name == "trained":
                model = AutoModelForSequenceClassification.from_pretrained(Path(folder, "run"))
                model.save_pretrained(CHECKPOINT)
                AutoTokenizer.from_pretrained(Path(folder, "run")).save_pretrained(CHECKPOINT)
    for code in CHECKPOINT.glob("*.py"):  # the installed package has it
        code.unlink()
    with tempfile.TemporaryDirectory() as folder:
        values["evaluated"] = evaluated(Path(folder))
        values["predicted"] = as_frozen(predicted(Path(folder)))
    VALUES.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
