"""Healing: trains a model with a new scheme, on unlabelled text, to reproduce the original's hidden states.

It is a layer-by-layer self-distillation (see `heal_trainer`). In half of the texts two tokens, near or far from each
other, are swapped, for the original and for the model alike, so that the model learns the effect of order too.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from ..data.columns import find_columns
from ..data.reading import read_file
from ..errors import Diverged, UserError
from ..options import COUNT, POSITIVE, SEED, Options, Range, check_range, whole_number
from ..training.inference import pad_rows, take_off_autocast
from ..training.run_folder import not_finite
from .heal_trainer import Distillation, Rows
from .measure import check_tokens, encode, special_tokens

HELD_OUT = 500
"""At most this many texts are set aside to measure on, and at most a tenth."""


def read_training_texts(source: str | Path | Sequence[str]) -> list[str]:
    """Texts of a file (see `hf-posenc predict --data`), or the given ones, without empty ones.

    Raises:
        UserError: there is no such file, or no text in it.
    """
    if isinstance(source, (str, Path)):
        table = read_file(source)
        columns = find_columns(table, Options(), needs_label=False).texts(table)
        texts = [" ".join(parts) for parts in zip(*columns, strict=True)]
    else:
        texts = list(source)
        wrong = [text for text in texts if not isinstance(text, str)]
        if wrong:
            raise UserError(f"{wrong[0]!r} is no text. Give a file, or a list of strings.")
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError(f"{str(source)[:80]!r} holds no text. Give a file with one text per line.")
    return texts


def set_aside(texts: list[str]) -> tuple[list[str], list[str]]:
    """Texts to train on, and others to measure on: always the same split, with equal texts on one side.

    Raises:
        UserError: there are fewer than 20 different texts.
    """
    different = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).digest())
    if len(different) < 20:
        raise UserError(f"Healing has {len(different)} different texts. Give at least 20, better thousands.")
    held_out = different[: max(1, min(HELD_OUT, len(different) // 10))]
    return [text for text in texts if text not in set(held_out)], held_out


_SHARE = Range("a share of the texts, from 0 to 1", lambda value: 0 <= value <= 1)
_RANGES = {
    "max_steps": COUNT,
    "learning_rate": POSITIVE,
    "batch_size": COUNT,
    "max_length": whole_number(3),
    "swapped": _SHARE,
    "swap_distance": COUNT,
    "seed": SEED,
}


@dataclass(frozen=True)
class Healing:
    """How to heal.

    Attributes:
        max_steps: how many steps it takes; the learning rate falls to 0 over them.
        learning_rate: the highest, of AdamW. None: 6e-4 up to a hidden size of 384, above it in inverse
            proportion to the size, because equal steps change a wider layer's output more (arXiv 2203.03466).
        batch_size: texts per step.
        max_length: longer texts are cut to this many tokens.
        bf16: mixed precision.
        swapped: share of texts in which two tokens, drawn anew each time, are swapped.
        swap_distance: their largest distance, 1 for neighbours; see `swap_tokens`. None: as far as the text goes.
        disable_tqdm: show no progress.
        seed: of the order of texts, and of what is swapped in them.

    Raises:
        UserError: a value is out of range.
    """

    max_steps: int = 2000
    learning_rate: float | None = None
    batch_size: int = 32
    max_length: int = 128
    bf16: bool = False
    swapped: float = 0.5
    swap_distance: int | None = None
    disable_tqdm: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, accepts in _RANGES.items():
            value = getattr(self, name)
            unsaid = value is None and name not in ("learning_rate", "swap_distance")
            # True is 1 in Python, and means something else here.
            check_range(f"{name}={value!r}", "" if unsaid or isinstance(value, bool) else value, accepts)


def default_rate(hidden_size: int) -> float:
    """The learning rate that heals best in a thousand steps, measured at a hidden size of 384."""
    return min(6e-4, 6e-4 * 384 / hidden_size)


def heal(
    model: PreTrainedModel,
    original: PreTrainedModel,
    texts: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase,
    healing: Healing,
) -> dict[str, Any]:
    """Trains `model`, in place, to reproduce the original's hidden states; see the module.

    Args:
        model: the model with the new scheme.
        original: the model before the swap; it isn't changed.
        texts: unlabelled texts.
        tokenizer: of both.
        healing: the settings.

    Returns:
        A record: texts, steps, seconds, losses, settings, and the machine.

    Raises:
        UserError: there are several processes, or a text has tokens that the model lacks.
        Diverged: a loss or a weight isn't finite.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: healing takes one process. Start it without a launcher."
        )
    if healing.learning_rate is None:
        healing = replace(healing, learning_rate=default_rate(model.config.hidden_size))
    if not texts:
        raise UserError(
            "There is no text to heal with that isn't measured on, too. Give more text, or other eval_texts."
        )
    limit = min(model.config.max_position_embeddings, original.config.max_position_embeddings)
    rows = encode(tokenizer, texts, min(healing.max_length, limit))
    check_tokens(rows, model.config.vocab_size)
    with _prepared(model, original), tempfile.TemporaryDirectory() as folder:  # the Trainer makes one in any case
        trainer = Distillation(
            original,
            model=model,
            args=_arguments(folder, healing),
            train_dataset=cast(Any, Rows(rows, special_tokens(tokenizer), healing.swapped, healing.swap_distance)),
            data_collator=lambda batch: pad_rows(batch, tokenizer.pad_token_id),
        )
        try:
            seconds = trainer.train().metrics["train_runtime"]
            if bad := not_finite(model.named_parameters()):
                raise Diverged(f"{bad[0]} is no number any more.")
        except Diverged as error:
            rate = trainer.args.learning_rate
            raise Diverged(
                f"Healing diverged after {trainer.state.global_step} steps with learning_rate={rate:g}: the loss "
                f"is no number any more. Give a lower one, such as {rate / 3:.1g}."
            ) from error
        take_off_autocast(trainer.accelerator, model)
    model.eval()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    settings = ("learning_rate", "batch_size", "bf16", "swapped", "swap_distance", "seed", "max_length")
    return {
        "texts": len(rows),
        "longest": max(len(row["input_ids"]) for row in rows),
        "steps": trainer.state.global_step,
        "seconds": round(seconds, 1),
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        **{name: getattr(healing, name) for name in settings},
        "device": trainer.args.device.type,
        "threads": torch.get_num_threads(),
    }


@contextlib.contextmanager
def _prepared(model: PreTrainedModel, original: PreTrainedModel) -> Iterator[None]:
    """Turns dropout off and freezes the token embeddings while entered; then restores both, on the CPU."""
    words = cast(Any, model.base_model).embeddings.word_embeddings.weight
    trainable = words.requires_grad
    dropouts = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    rates = [module.p for module in dropouts]
    try:
        words.requires_grad_(False)
        for module in dropouts:  # the original runs without dropout too
            module.p = 0.0
        yield
    finally:
        for module, rate in zip(dropouts, rates, strict=True):
            module.p = rate
        words.requires_grad_(trainable)
        model.to("cpu"), original.to("cpu")  # type: ignore[arg-type]


def _arguments(folder: str, healing: Healing) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=healing.batch_size,
        max_steps=healing.max_steps,
        learning_rate=cast(float, healing.learning_rate),
        warmup_steps=min(20, healing.max_steps // 10),
        bf16=healing.bf16,
        seed=healing.seed,
        weight_decay=0.0,
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=max(20, healing.max_steps // 20),
        report_to="none",
        disable_tqdm=healing.disable_tqdm,
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )
