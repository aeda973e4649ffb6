"""`token_dropout`: the embeddings of ESM-2, which was trained with masks in every text."""

import torch
from torch import Tensor

from .unpadding import Tokens


def drop_mask_tokens(hidden_states: Tensor, tokens: Tokens, mask_token: int) -> Tensor:
    """Token dropout of embeddings (..., E): zero at mask tokens, and of a usual size in each sequence.

    ESM-2 was trained with 12 % of mask tokens, so all are multiplied by .88 / (1 - share of mask tokens).
    """
    count = tokens.sequence.numel() if tokens.may_be_packed else tokens.num_sequences
    numbers = tokens.sequence.clamp(min=0)

    def total(values: Tensor) -> Tensor:
        """The sum over each token's sequence."""
        return values.new_zeros(count).scatter_add(0, numbers.flatten(), values.flatten())[numbers]

    real = (tokens.sequence >= 0).to(torch.float32)
    kept = real * (tokens.input_ids != mask_token)
    factor = kept * 0.88 * total(real) / total(kept).clamp(min=1)  # nothing is kept of a sequence of masks alone
    return (hidden_states * factor.unsqueeze(-1)).to(hidden_states.dtype)
