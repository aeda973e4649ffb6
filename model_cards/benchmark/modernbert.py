"""ModernBERT on real tokens alone, in PyTorch's varlen attention: fast without FlashAttention's package."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface


def windowed_varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """softmax(scaling q k^T) v within each sequence and window: (1, H, T, d) three times -> (1, T, H, d).

    Without dropout, which ModernBERT's attention doesn't have by default.

    Args:
        module: of transformers' interface.
        query, key, value: of the sequences one behind the other.
        attention_mask: None.
        scaling: factor on q k^T.
        sliding_window: one more than the tokens that are seen on each side (ModernBERT's way); None: all.
        cu_seq_lens_q: int32 (n + 1,), borders of the sequences.
        max_length_q: tokens of the longest.
        kwargs: what transformers passes to other attentions.
    """
    side = -1 if sliding_window is None else sliding_window - 1
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in (query, key, value))
    cuts, longest = cu_seq_lens_q, max_length_q
    out: Any = varlen_attn(q, k, v, cuts, cuts, longest, longest, scale=scaling, window_size=(side, side))  # type: ignore[arg-type]
    return out.unsqueeze(0), None


AttentionInterface.register("posenc_windowed_varlen", windowed_varlen_attention)


class UnpaddedModernBert(nn.Module):
    """A `ModernBertForSequenceClassification` whose encoder sees one row without padding. Same weights, same logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.set_attn_implementation("posenc_windowed_varlen")
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, token_type_ids: Tensor
    ) -> SimpleNamespace:
        """(B, S) -> `loss`, `logits` (B, labels)."""
        counts = attention_mask.sum(-1)
        cuts = nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        index = attention_mask.flatten().nonzero().squeeze(-1)
        positions = (attention_mask.cumsum(-1) - 1).flatten()[index]
        hidden = self.model.model(
            input_ids.flatten()[index].unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            cu_seq_lens_q=cuts,
            max_length_q=int(counts.max()),
        ).last_hidden_state[0]
        first = hidden[cuts[:-1].long()]
        logits = self.model.classifier(self.model.drop(self.model.head(first)))
        return SimpleNamespace(logits=logits, loss=nn.functional.cross_entropy(logits, labels))
