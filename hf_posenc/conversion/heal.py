"""Healing: a model whose scheme was swapped learns, on unlabelled text, to say again what the original says.

The loss, at real tokens, is the mean over layers of the squared difference between its hidden states and the original's
(a layer-by-layer self-distillation), each layer divided by the variance of the original's there, so that all count
alike; with a masked-LM head also the divergence between the two predictions, at up to 256 tokens of a batch, for
logits of a whole batch take gigabytes where the vocabulary is large. The token embeddings stay as they are.
Biases learn faster than the rest, see `hf_posenc.optimizer`. In half of the texts two neighbouring tokens change
places, for the original and for the model alike, so that it learns what their order does, too. Where the new scheme
adds to the embeddings, one layer after the other is added in the first half of the time, from below: the first has most
to learn, for it reads the new positions, its steps cost a fraction of the whole model's, and what stands above it would
otherwise adapt to what it doesn't say yet. Schemes that act on attention have as much to learn in every layer, and did
no better with it.
Underneath is the stock Trainer: checkpoints, resuming, progress.
"""

import contextlib
import hashlib
import inspect
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState, PrinterCallback
from transformers.utils import logging

from ..model.modeling_posenc import PosEncForMaskedLM
from ..optimizer import speed_up_positions
from ..training.errors import Diverged
from ..training.precision import not_finite
from .measure import check_tokens, encode, pad_rows, special_tokens, swap_neighbours
from .sources import fingerprint

logger = logging.get_logger(__name__)

_FIRST_ALONE, _ALL_FROM = 0.15, 0.5
"""Shares of the budget: up to here the first layer alone is trained, and from here on all of them."""

_PREDICTED = 256
"""At most so many tokens of a batch have their predictions compared."""

HELD_OUT = 500
"""At most so many texts are set aside to measure on, and at most a tenth."""


def read_training_texts(source: str | Path | Sequence[str]) -> list[str]:
    """Texts of a file (see `hf-posenc predict --file`), or the given ones, without empty ones.

    Raises:
        ValueError: there is no such file, or no text in it.
    """
    if isinstance(source, (str, Path)):
        from ..training.prediction_files import read_inputs

        found = [
            text.text if text.text_pair is None else f"{text.text} {text.text_pair}"
            for text in read_inputs(str(source))
        ]
    else:
        found = list(source)
        wrong = [text for text in found if not isinstance(text, str)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no text. Give a file, or a list of strings.")
    found = [text for text in found if text.strip()]
    if not found:
        raise ValueError(f"{str(source)[:80]!r} holds no text. Give a file with one text per line.")
    return found


def set_aside(texts: list[str]) -> tuple[list[str], list[str]]:
    """Texts to train on, and others to measure on: the same split each time, equal texts on one side.

    Raises:
        ValueError: there are fewer than 20 different texts.
    """
    different = sorted(set(texts), key=lambda text: hashlib.sha256(text.encode()).digest())
    if len(different) < 20:
        raise ValueError(f"Healing has {len(different)} different texts. Give at least 20, better thousands.")
    held_out = different[: max(1, min(HELD_OUT, len(different) // 10))]
    return [text for text in texts if text not in set(held_out)], held_out


class _Clock(TrainerCallback, ExportableState):
    """How much of the budget is spent, also over interruptions; stops the training when all is."""

    def __init__(self, seconds: float, max_steps: int | None, spent: float = 0.0) -> None:
        self.seconds, self.max_steps, self.spent = seconds, max_steps, spent
        self._since: float | None = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"args": {"seconds": self.seconds, "max_steps": self.max_steps, "spent": self.used}, "attributes": {}}

    @property
    def used(self) -> float:
        """Seconds of training so far."""
        return self.spent + (0.0 if self._since is None else time.monotonic() - self._since)

    def progress(self, step: int) -> float:
        """The share of the budget that is spent, by steps where their number is given."""
        return step / self.max_steps if self.max_steps else min(1.0, self.used / self.seconds)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts it."""
        self._since = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stops the training, after a last checkpoint is of no use."""
        if not self.max_steps and self.used >= self.seconds:
            control.should_training_stop = True


class _Progress(TrainerCallback):
    """A bar of the budget: the Trainer's own counts steps, and how many there will be isn't known."""

    def __init__(self, trainer: Any, minutes: float, max_steps: int | None) -> None:
        self.trainer, self.total = trainer, max_steps or round(minutes * 60)
        self.unit = "step" if max_steps else "s"
        self.bar: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draws it."""
        self.bar = tqdm(total=self.total, unit=self.unit, desc="Healing")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Moves it."""
        self.bar.n = round(self.trainer.clock.progress(state.global_step) * self.total)
        self.bar.refresh()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Says the loss."""
        if logs and "loss" in logs and self.bar is not None:
            self.bar.set_postfix(loss=f"{float(logs['loss']):.4f}", step=state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Closes it."""
        self.bar.close()


class _Distillation(Trainer):
    """The stock Trainer with the loss of this module."""

    original: PreTrainedModel
    clock: _Clock
    warmup_steps = 20

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See the module."""
        mine = self.accelerator.unwrap_model(model)
        bodies = [cast(Any, one).base_model for one in (mine, self.original)]
        depth = None
        if bodies[0].position.uses("embed"):
            depth = depth_at(self.clock.progress(self.state.global_step), len(bodies[0].layers))
        with _first_layers(bodies, depth):
            with torch.no_grad(), self.accelerator.autocast():
                theirs = bodies[1](**inputs, output_hidden_states=True)
            with self.accelerator.autocast():
                ours = bodies[0](**inputs, output_hidden_states=True)
        real = inputs["attention_mask"].bool()
        loss = hidden_states_loss(ours.hidden_states, theirs.hidden_states, real)
        # Only a masked-LM head has anything to learn from; one of another task may want other inputs than texts.
        if depth is None and isinstance(mine, PosEncForMaskedLM):
            some = torch.randperm(int(real.sum()), device=real.device)[:_PREDICTED]
            with torch.no_grad(), self.accelerator.autocast():
                expected = cast(Any, self.original).predict_tokens(theirs.last_hidden_state[real][some])
            with self.accelerator.autocast():
                given = mine.predict_tokens(ours.last_hidden_state[real][some])
            loss = loss + divergence(given, expected)
        if not torch.isfinite(loss):
            raise Diverged("The loss is no number any more.")
        return (loss, ours) if return_outputs else loss

    def _save(self, *args: Any, **kwargs: Any) -> None:
        self.check_weights()
        super()._save(*args, **kwargs)

    def check_weights(self) -> None:
        """Raises Diverged where they aren't finite."""
        if bad := not_finite(cast(Any, self.model).named_parameters()):
            raise Diverged(f"{bad[0]} is no number any more.")

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler:
        return _LikeLengths(self)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW, in which biases move as fast as they have to."""
        optimizer = super().create_optimizer(model)
        speed_up_positions(optimizer, cast(Any, self.model))
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """A short warm-up, then down to 0 as the budget is spent."""

        def factor(step: int) -> float:
            return min(1.0, (step + 1) / self.warmup_steps) * max(0.0, 1 - self.clock.progress(step))

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(cast(Any, optimizer or self.optimizer), factor)
        return self.lr_scheduler


class _LikeLengths(torch.utils.data.Sampler):
    """Batches of texts of like lengths, in random order: less padding and fewer kernels, half as much again on a CPU.

    transformers' own grouping goes from long to short again and again, and draws another order where a training is
    resumed. Here an epoch's order follows from the seed alone, and so does the seed that comes with each text: of what
    is changed in it.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.lengths = torch.tensor([len(row["input_ids"]) for row in trainer.train_dataset.rows])

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        size = self.trainer.args.train_batch_size
        epoch = self.trainer.args.seed + self.trainer.state.global_step // -(-len(self) // size)
        for index in batches_of_like_lengths(self.lengths, size, epoch):
            yield index, f"{epoch} {index}"


def batches_of_like_lengths(lengths: Tensor, size: int, seed: int, among: int = 50) -> list[int]:
    """Indices of all texts, batch by batch: like lengths are together among the texts of so many batches.

    Args:
        lengths: (n,), int.
        size: of a batch. The last one has what is left.
        seed: the order follows from it.
        among: 1: no grouping.
    """
    generator = torch.Generator().manual_seed(seed)
    batches: list[Tensor] = []
    for some in torch.randperm(len(lengths), generator=generator).split(among * size):
        batches += some[lengths[some].argsort(stable=True)].split(size)
    last = [batch for batch in batches if len(batch) < size]  # at most one, and it must come at the end
    whole = [batch for batch in batches if len(batch) == size]
    order = torch.randperm(len(whole), generator=generator).tolist()
    return torch.cat([*(whole[place] for place in order), *last]).tolist()


def depth_at(progress: float, layers: int) -> int | None:
    """How many of the layers are trained at a share of the budget; None: all, and the head."""
    for depth in range(1, layers):
        if progress < _FIRST_ALONE + (_ALL_FROM - _FIRST_ALONE) * (depth - 1) / max(1, layers - 2):
            return depth
    return None


@contextlib.contextmanager
def _first_layers(bodies: list[Any], depth: int | None) -> Iterator[None]:
    """Bodies that end after so many layers."""
    kept = [body.layers for body in bodies]
    try:
        for body in bodies:
            body.layers = body.layers[:depth]
        yield
    finally:
        for body, layers in zip(bodies, kept, strict=True):
            body.layers = layers


def hidden_states_loss(ours: Sequence[Tensor], theirs: Sequence[Tensor], real: Tensor) -> Tensor:
    """The mean over layers of the squared difference at real tokens, relative to the original's variance there.

    Args:
        ours, theirs: hidden states (B, S, D), the embeddings' first: those aren't compared.
        real (Tensor): (B, S), bool.
    """
    losses = []
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        wanted = other[real].float()
        losses.append((mine[real].float() - wanted).square().mean() / wanted.var().clamp(min=1e-6))
    return torch.stack(losses).mean()


def divergence(given: Tensor, expected: Tensor) -> Tensor:
    """The mean Kullback-Leibler divergence KL(expected || given) of logits (N, V), in nats."""
    return torch.nn.functional.kl_div(
        given.float().log_softmax(-1), expected.float().log_softmax(-1), log_target=True, reduction="batchmean"
    )


def _check_number(name: str, value: Any, or_zero: bool = False) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (0 < value < float("inf") or (or_zero and value == 0)):
        accepted = "a positive number" + " or 0" * or_zero
        raise ValueError(f"{name}={value!r} is out of range. Healing takes {accepted} for it.")


def _check_count(name: str, value: Any, least: int, most: int | None = None, unless: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        accepted = f"at least {least}" if most is None else f"{least} to {most}"
        accepted += f", or {unless}" if unless else ""
        raise ValueError(f"{name}={value!r} is out of range. It must be a whole number, {accepted}.")


def default_rate(hidden_size: int) -> float:
    """The learning rate that heals best in a thousand steps, measured at a hidden size of 384."""
    return min(6e-4, 6e-4 * 384 / hidden_size)


def heal(
    model: PreTrainedModel,
    original: PreTrainedModel,
    texts: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None,
    minutes: float = 10.0,
    max_steps: int | None = None,
    learning_rate: float | None = None,
    batch_size: int = 32,
    max_length: int = 128,
    bf16: bool = False,
    swapped: float = 0.5,
    save_minutes: float = 2.0,
    work_dir: str | Path | None = None,
    disable_tqdm: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Trains `model`, in place, to have the original's hidden states; see the module.

    Args:
        model: the swapped model.
        original: the model before the swap, which doesn't change.
        texts: unlabelled texts.
        tokenizer: of both.
        minutes: time for it; the learning rate falls to 0 as it runs out.
        max_steps: stop after so many steps instead.
        learning_rate: the highest, of AdamW. None: 6e-4 up to a hidden size of 384, and less above it in inverse
            proportion, as steps of one size change a wider layer's output more (arXiv 2203.03466).
        batch_size: texts per step.
        max_length: longer texts are cut to so many tokens.
        bf16: mixed precision.
        swapped: share of texts in which two neighbouring tokens, drawn anew each time, change places.
        save_minutes: how often a checkpoint is written into `work_dir`; 0: after every step.
        work_dir: where checkpoints are written, and a training that was stopped is gone on with. None: no checkpoints.
        disable_tqdm: show no progress.
        seed: of the order of texts, and of what is swapped in them.

    Returns:
        What was done: texts, steps, seconds, losses, settings, and on what it ran in the end.

    Raises:
        ValueError: an argument is out of range, `work_dir` holds the healing of something else, a text has tokens that
            the model lacks, or the loss diverged (its checkpoints are deleted then).
        Interrupted: Ctrl-C; a checkpoint was saved, if there is a `work_dir`.
    """
    if learning_rate is None:
        learning_rate = default_rate(model.config.hidden_size)
    _check_number("minutes", minutes)
    _check_number("learning_rate", learning_rate)
    _check_number("save_minutes", save_minutes, or_zero=True)
    if isinstance(swapped, bool) or not isinstance(swapped, (int, float)) or not 0 <= swapped <= 1:
        raise ValueError(f"swapped={swapped!r} is out of range. It must be a share of the texts, from 0 to 1.")
    _check_count("batch_size", batch_size, 1)
    _check_count("max_length", max_length, 3)
    _check_count("seed", seed, 0, 2**32 - 1)
    if max_steps is not None:
        _check_count("max_steps", max_steps, 1, unless="None")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: healing takes one process. Start it without a launcher."
        )
    assert tokenizer is not None
    if not texts:
        raise ValueError(
            "There is no text to heal with that isn't measured on, too. Give more text, or other eval_texts."
        )
    limit = model.config.max_position_embeddings
    rows = encode(tokenizer, texts, min(max_length, limit, original.config.max_position_embeddings))
    check_tokens(rows, model.config.vocab_size)
    resume = None
    if work_dir is not None:
        work_dir = Path(work_dir)
        resume = _resume_point(work_dir, model, original, rows, learning_rate, batch_size, seed, bf16, float(swapped))
    clock = _Clock(minutes * 60, max_steps, 0.0 if resume is None else _spent(resume))
    steps = max_steps or 10**7
    unused = None if work_dir is not None else tempfile.TemporaryDirectory()  # the Trainer makes its folder anyway
    arguments = TrainingArguments(
        output_dir=str(work_dir) if unused is None else unused.name,
        per_device_train_batch_size=batch_size,
        max_steps=steps,
        learning_rate=learning_rate,
        weight_decay=0.0,
        bf16=bf16,
        seed=seed,
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=20,
        report_to="none",
        disable_tqdm=True,  # its bar counts steps, see _Progress
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    pad = tokenizer.pad_token_id or 0
    words = cast(Any, model.base_model).embeddings.word_embeddings.weight
    trainable = words.requires_grad
    words.requires_grad_(False)
    dropouts = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    rates = [module.p for module in dropouts]
    for module in dropouts:  # the target has none either, and noise would only blur it
        module.p = 0.0
    attention = model.config.attention_probs_dropout_prob
    model.config.attention_probs_dropout_prob = 0.0
    trainer = _Distillation(
        model=model,
        args=arguments,
        train_dataset=cast(Any, _Rows(rows, special_tokens(tokenizer), swapped)),
        data_collator=lambda batch: pad_rows(batch, pad),
        callbacks=[clock],
    )
    trainer.original = original.eval().to(trainer.args.device)  # type: ignore[arg-type]
    trainer.clock = next(item for item in trainer.callback_handler.callbacks if isinstance(item, _Clock))
    trainer.model_accepts_loss_kwargs = False
    trainer.remove_callback(PrinterCallback)
    if not disable_tqdm:
        trainer.add_callback(_Progress(trainer, minutes, max_steps))
    if work_dir is not None:
        trainer.add_callback(_SaveByTime(save_minutes * 60))
    from ..training.checkpoints import newest_complete
    from ..training.errors import Interrupted
    from ..training.run import StopOnInterrupt

    stop = StopOnInterrupt()
    if work_dir is not None:  # elsewhere nothing could be kept
        trainer.add_callback(stop)
    try:
        with stop if work_dir is not None else contextlib.nullcontext():
            trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
            trainer.check_weights()
        if stop.agreed:
            last, _ = newest_complete(str(work_dir), of_a_run=False)
            raise Interrupted(f"the newest checkpoint of the healing is {str(last)!r}. Give the same command to go on.")
        trainer.clock = next(item for item in trainer.callback_handler.callbacks if isinstance(item, _Clock))
    except Diverged as error:
        if work_dir is not None:
            remove_work(work_dir)  # no use in going on from there
        raise Diverged(
            f"Healing diverged after {trainer.state.global_step} steps with learning_rate={learning_rate:g}: the loss "
            f"is no number any more. Give a lower one, such as {learning_rate / 3:.1g}."
        ) from error
    finally:
        if unused is not None:
            unused.cleanup()
        model.config.attention_probs_dropout_prob = attention
        for module, rate in zip(dropouts, rates, strict=True):
            module.p = rate
        words.requires_grad_(trainable)
        model.to("cpu"), original.to("cpu")  # type: ignore[arg-type]
    model.eval()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "texts": len(rows),
        "longest": max(len(row["input_ids"]) for row in rows),
        "steps": trainer.state.global_step,
        "seconds": round(trainer.clock.used, 1),
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "max_length": max_length,
        "bf16": bf16,
        "swapped": swapped,
        "seed": seed,
        "device": trainer.args.device.type,
        "threads": torch.get_num_threads(),
    }


def accepted_options() -> set[str]:
    """What `convert` passes on to `heal`: its keywords but those that `convert` has itself."""
    keywords = {name for name, one in inspect.signature(heal).parameters.items() if one.kind is one.KEYWORD_ONLY}
    return keywords - {"tokenizer", "minutes", "seed"}


class _Rows(torch.utils.data.Dataset):
    """Rows by index and seed: some of them with two tokens swapped."""

    def __init__(self, rows: list[dict[str, list[int]]], special: set[int], swapped: float) -> None:
        self.rows, self.special, self.swapped = rows, special, swapped

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: tuple[int, str]) -> dict[str, list[int]]:
        index, seed = place
        draw = random.Random(seed)
        row = self.rows[index]
        return swap_neighbours(row, self.special, draw) if draw.random() < self.swapped else row


class _SaveByTime(TrainerCallback):
    """Asks for a checkpoint every so many seconds, and keeps two."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.last = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Looks at the clock."""
        if time.monotonic() - self.last >= self.seconds:
            self.last = time.monotonic()
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Removes all but the two newest."""
        from ..training.checkpoints import checkpoints

        for path in checkpoints(str(args.output_dir))[:-2]:
            shutil.rmtree(path, ignore_errors=True)


def _spent(checkpoint: Path) -> float:
    """Seconds that went into a checkpoint."""
    kept = TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).stateful_callbacks.get("_Clock", {})
    return float(kept.get("args", {}).get("spent", 0.0)) if isinstance(kept, dict) else 0.0


def _resume_point(
    folder: Path,
    model: PreTrainedModel,
    original: PreTrainedModel,
    rows: list[dict[str, list[int]]],
    *settings: Any,
) -> Path | None:
    """The newest whole checkpoint of the same healing, if it was begun before.

    Raises:
        ValueError: the folder holds something else.
    """
    from ..training.checkpoints import newest_complete, write_json

    digest = hashlib.sha256(json.dumps([row["input_ids"] for row in rows]).encode())
    for one in (model, original):
        digest.update(json.dumps(one.config.to_dict(), default=str, sort_keys=True).encode())
    # The model's weights were fitted: their last digits differ between machines.
    digest.update(fingerprint(original.state_dict()).encode())
    digest.update(repr(settings).encode())
    name, found = folder / "healing.json", digest.hexdigest()
    if folder.is_file():
        raise ValueError(f"{str(folder)!r} is a file, and healing keeps its checkpoints there. Move it away.")
    if name.is_file():
        if _recorded(name) != found:
            raise ValueError(
                f"{str(folder)!r} holds the healing of something else, or with other text or settings. Go on with what "
                "it began with, or delete that folder."
            )
        resume, damaged = newest_complete(folder, of_a_run=False)
        if resume is not None or damaged:
            goes_on = "begins anew" if resume is None else f"goes on from {resume.name} in {str(folder)!r}"
            logger.warning(f"{damaged}: healing {goes_on}." if damaged else f"Healing {goes_on}.")
        return resume
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{str(folder)!r} isn't empty and holds no healing. Move it away.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(name, {"fingerprint": found})
    return None


def _recorded(name: Path) -> Any:
    try:
        return json.loads(name.read_text(encoding="utf-8"))["fingerprint"]
    except (ValueError, TypeError, KeyError, UnicodeDecodeError):
        return None


def remove_work(folder: str | Path) -> None:
    """Deletes the checkpoints of a healing that is done."""
    if (Path(folder) / "healing.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
