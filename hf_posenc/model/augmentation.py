"""`position_augmentation`: positions moved in training, so that long texts have none that training hasn't seen.

One draw per sequence from torch's default generator, the same whether padding is computed on or not. To add a way:
write a function like those here, and a line in `scheme_table.py`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from .unpadding import Tokens, last_positions


def shift_positions(tokens: Tokens, limit: int) -> Tokens:
    """p + k in each sequence, k uniform such that all positions stay below `limit`: SHAPE, arXiv 2109.05644.

    Args:
        tokens: positions count from 0 in each sequence.
        limit: number of positions to choose from.

    Raises:
        ValueError: a sequence has more tokens than there are positions; or a traced graph has packed rows.
    """
    lengths, sequence = _lengths(tokens, limit), tokens.sequence.clamp(min=0)
    start = (torch.rand(lengths.shape[0], device=lengths.device) * (limit - lengths + 1)).long()
    return _at_positions(tokens, tokens.positions + start[sequence], limit)


def sample_positions(tokens: Tokens, limit: int) -> Tokens:
    """The p-th smallest of a uniform sample without replacement of all positions below `limit`: arXiv 2305.16843.

    Arguments and errors are those of `shift_positions`.
    """
    lengths, sequence = _lengths(tokens, limit), tokens.sequence.clamp(min=0)
    places = torch.arange(limit, device=lengths.device)
    # The argsort of noise is a random order: the first n places in it are a sample without replacement.
    order = torch.rand(lengths.shape[0], limit, device=lengths.device).argsort(-1)
    sample = torch.where(order < lengths.unsqueeze(-1), places, limit).sort(-1).values
    return _at_positions(tokens, sample[sequence, tokens.positions], limit)


def _lengths(tokens: Tokens, limit: int) -> Tensor:
    """int64 (N,): tokens of each sequence; 1 where it has none."""
    is_counted = tokens.position_range is not None
    if tokens.may_be_packed and not is_counted:
        raise ValueError(
            "A compiled or exported model can't tell the sequences of packed rows apart, so position_augmentation "
            "can't move each. Leave seq_idx and cu_seq_lens_q out, or call the model uncompiled."
        )
    if tokens.longest > limit:
        what = "A training sequence" if is_counted else "A row of the compiled model, with its padding,"
        raise ValueError(
            f"{what} has {tokens.longest} tokens, but position_augmentation has {limit} positions to "
            f"choose from. Raise position_augmentation_length, or truncate to {limit} tokens."
        )
    return last_positions(tokens.positions, tokens.sequence, tokens.num_sequences) + 1


def _at_positions(tokens: Tokens, positions: Tensor, limit: int) -> Tokens:
    position_range = None if tokens.position_range is None else (0, limit - 1)
    return replace(
        tokens,
        positions=positions.masked_fill(tokens.sequence < 0, 0),
        positions_are_aranges=False,
        position_range=position_range,
    )
