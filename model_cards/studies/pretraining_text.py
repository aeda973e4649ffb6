"""The text of the pretraining study: windows to train on, and held-out novels in blocks."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from hf_posenc.data.tokenizer import train_tokenizer
from hf_posenc.errors import UserError
from hf_posenc.files import write_json, written_whole
from model_cards.studies.parts import read_rows

VOCABULARY = 2_000
LENGTH = 128
"""Tokens of a training window, [CLS] and [SEP] among them."""
CONTENT = LENGTH - 2
BLOCK = 8 * CONTENT
"""Held-out text is kept in blocks that can be read as 8, 4, 2 windows or 1."""
HELD_OUT_BLOCKS = 32
"""Those that curves and choices are measured on; other measurements take all."""
MASKED = 0.2
TRAINED_ON = {
    "novels_author": ("train",),
    "imdb": ("train", "train_long"),
    "review_polarity": ("train",),
    "hyperpartisan": ("train",),
    "contract_nli": ("train",),
}


def read_documents(data: Path) -> list[str]:
    """The texts to train on, each once."""
    rows = (row for name, splits in TRAINED_ON.items() for split in splits for row in read_rows(data, name, split))
    return list(dict.fromkeys(row["text"] for row in rows))


def read_held_out(data: Path) -> dict[str, list[str]]:
    """Passages of novels that aren't trained on: every other novel is for choices (`dev`), the others are reported."""
    rows = read_rows(data, "novels_author", "test")
    novels = sorted({row["novel"] for row in rows})
    return {
        split: [row["text"] for row in rows if row["novel"] in novels[first::2]]
        for first, split in enumerate(("dev", "test"))
    }


def windows_of(tokens: list[int], size: int) -> Iterator[list[int]]:
    """A document's windows of exactly so many tokens; the last one may overlap the one before it."""
    if len(tokens) >= size:
        yield from (tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size))
        if len(tokens) % size:
            yield tokens[-size:]


class Text:
    """The text as token ids, made once and kept in the folder of the runs.

    Attributes:
        tokenizer: trained on the documents.
        train: (N, 126).
        dev, test: blocks (n, 1008) of held-out novels.
        unigrams, unigrams_of_curves: the loss of the training text's token frequencies in `test`, and in those of its
            blocks that curves are measured on.
    """

    def __init__(self, data: Path, work: Path) -> None:
        with FileLock(work / "text.lock"):
            if not (work / "text.pt").is_file():
                self._make(data, work)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
        parts = torch.load(work / "text.pt", weights_only=True)
        self.train, self.dev, self.test = (parts[split].long() for split in ("train", "dev", "test"))
        frequencies = self.train.flatten().bincount(minlength=len(self.tokenizer)) + 1.0
        losses = -(frequencies / frequencies.sum()).log()
        self.unigrams, self.unigrams_of_curves = (
            float(losses[blocks[mask_of(blocks, 0)]].mean()) for blocks in (self.test, self.test[:HELD_OUT_BLOCKS])
        )

    @staticmethod
    def _make(data: Path, work: Path) -> None:
        documents, held_out = read_documents(data), read_held_out(data)
        tokenizer = train_tokenizer(documents, VOCABULARY, model_max_length=LENGTH)
        tokenizer.save_pretrained(work / "tokenizer")

        def cut(texts: list[str], size: int) -> Tensor:
            encode = tokenizer.backend_tokenizer.encode  # a text at a time: all encodings at once take 2 GB
            rows = (encode(text, add_special_tokens=False).ids for text in texts)
            return torch.tensor([window for row in rows for window in windows_of(row, size)]).short()

        parts = {"train": cut(documents, CONTENT)}
        for split, texts in held_out.items():
            blocks = cut(texts, BLOCK)
            parts[split] = blocks[torch.randperm(len(blocks), generator=torch.Generator().manual_seed(0))]
        with written_whole(work / "text.pt") as path:
            torch.save(parts, path)

    def facts(self) -> dict[str, Any]:
        """The sizes, as they are reported, and what tells this text from another."""
        blocks = {split: getattr(self, split) for split in ("train", "dev", "test")}
        digest = hashlib.sha256(b"".join(block.short().numpy().tobytes() for block in blocks.values())).hexdigest()
        blocks["curve"] = self.test[:HELD_OUT_BLOCKS]
        sizes = {f"{name}_tokens": block.numel() for name, block in blocks.items()}
        masked = {f"{name}_masked": int(mask_of(blocks[name], 0).sum()) for name in ("test", "curve")}
        unigrams = {name: round(getattr(self, name), 4) for name in ("unigrams", "unigrams_of_curves")}
        return {**sizes, **masked, "vocabulary": len(self.tokenizer), "sha256": digest, **unigrams}

    def record(self, output: Path) -> None:
        """Writes the facts beside the parts that are trained on this text.

        Raises:
            UserError: parts were trained on another text.
        """
        path, facts = output / "text.json", self.facts()
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else facts
        if known["sha256"] != facts["sha256"]:
            raise UserError(
                f"The parts in {str(output)!r} were trained on another text or vocabulary. Take the same data and "
                "versions, or another folder."
            )
        write_json(path, facts)


def mask_of(windows: Tensor, seed: int) -> Tensor:
    """Draws the places that are masked; the same for all schemes."""
    return torch.rand(windows.shape, generator=torch.Generator().manual_seed(seed)) < MASKED
