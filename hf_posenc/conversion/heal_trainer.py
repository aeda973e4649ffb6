"""The trainer of healing: the stock Trainer with healing's loss and order of texts.

The loss is a layer-by-layer self-distillation: at real tokens, the mean over layers of the squared difference between
the model's hidden states and the original's, each layer divided by the variance of the original's there, so that all
layers count equally. A masked-LM head adds the divergence between the two predictions, at up to 256 tokens of a batch:
with a large vocabulary the logits of a whole batch take gigabytes. The token embeddings are frozen. Biases have higher
learning rates, see `hf_posenc.optimizer`.

If the new scheme adds to the embeddings, the layers are trained from below in the first half of the steps, one more at
a time. The first layer reads the new positions and has most to learn, its steps cost a fraction of the whole model's,
and the layers above would otherwise adapt to its unfinished output. Schemes that act on attention have as much to learn
in every layer, and gained nothing from this.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer
from transformers.trainer_callback import PrinterCallback

from ..errors import Diverged
from ..model.modeling_posenc import PosEncForMaskedLM
from ..optimizer import scale_position_learning_rates
from .measure import swap_tokens

_FIRST_ALONE, _ALL_FROM = 0.15, 0.5
"""Shares of the steps: up to here the first layer alone is trained, and from here on all of them."""

_PREDICTED = 256
"""Predictions are compared at no more than this many tokens of a batch."""


class Distillation(Trainer):
    """The stock Trainer with the loss of this module."""

    def __init__(self, original: PreTrainedModel, **options: Any) -> None:
        """Takes the model to learn from, and what the stock Trainer takes."""
        super().__init__(**options)
        self.original = original.eval().to(self.args.device)  # type: ignore[arg-type]
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """See the module."""
        mine = self.accelerator.unwrap_model(model)
        bodies = [cast(Any, either).base_model for either in (mine, self.original)]
        depth = None
        if bodies[0].position.uses("embed"):
            depth = depth_at(self.state.global_step / self.state.max_steps, len(bodies[0].layers))
        with _first_layers(bodies, depth):
            with torch.no_grad(), self.accelerator.autocast():
                theirs = bodies[1](**inputs, output_hidden_states=True)
            with self.accelerator.autocast():
                ours = bodies[0](**inputs, output_hidden_states=True)
        real = inputs["attention_mask"].bool()
        loss = hidden_states_loss(ours.hidden_states, theirs.hidden_states, real)
        # Only a masked-LM head has a target here; heads of other tasks may want other inputs than texts.
        if depth is None and isinstance(mine, PosEncForMaskedLM):
            some = torch.randperm(int(real.sum()), device=real.device)[:_PREDICTED]
            with torch.no_grad(), self.accelerator.autocast():
                expected = cast(Any, self.original).lm_head(theirs.last_hidden_state[real][some])
            with self.accelerator.autocast():
                predicted = mine.lm_head(ours.last_hidden_state[real][some])
            loss = loss + divergence(predicted, expected)
        if not torch.isfinite(loss):
            raise Diverged("The loss is no number any more.")
        return (loss, ours) if return_outputs else loss

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler:
        return LikeLengths(self)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW with higher learning rates for biases."""
        optimizer = super().create_optimizer(model)
        scale_position_learning_rates(optimizer, cast(Any, self.model))
        return optimizer


class LikeLengths(torch.utils.data.Sampler):
    """Batches of texts of similar lengths, in random order: less padding and fewer kernels, 1.5 times as fast on a CPU.

    transformers' own grouping goes from long to short again and again. Here the seed decides an epoch's order, and the
    seed that comes with each text for its swap.
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
    """Indices of all texts, batch by batch, grouped by length within blocks of `among` batches.

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
    """How many of the layers are trained at a share of the steps; None: all, and the head."""
    for depth in range(1, layers):
        if progress < _FIRST_ALONE + (_ALL_FROM - _FIRST_ALONE) * (depth - 1) / max(1, layers - 2):
            return depth
    return None


@contextlib.contextmanager
def _first_layers(bodies: list[Any], depth: int | None) -> Iterator[None]:
    """The encoders cut after this many layers."""
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


def divergence(predicted: Tensor, expected: Tensor) -> Tensor:
    """The mean Kullback-Leibler divergence KL(expected || given) of logits (N, V), in nats."""
    return torch.nn.functional.kl_div(
        predicted.float().log_softmax(-1), expected.float().log_softmax(-1), log_target=True, reduction="batchmean"
    )


class Rows(torch.utils.data.Dataset):
    """Rows by index and seed: some of them with two tokens swapped, `farthest` apart at most."""

    def __init__(
        self, rows: list[dict[str, list[int]]], special: set[int], swapped: float, farthest: int | None
    ) -> None:
        self.rows, self.special, self.swapped, self.farthest = rows, special, swapped, farthest

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: tuple[int, str]) -> dict[str, list[int]]:
        index, seed = place
        draw = random.Random(seed)
        row = self.rows[index]
        return swap_tokens(row, self.special, draw, self.farthest) if draw.random() < self.swapped else row
