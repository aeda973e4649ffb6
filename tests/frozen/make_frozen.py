"""Writes `frozen.safetensors.xz`: small models of every scheme and head, and what they answer, as version 0.1 has them.

    python tests/frozen/make_frozen.py

Run with the version that is to be frozen, never with a newer one: `test_frozen.py` holds later code to it.
"""

import json
import lzma
from pathlib import Path

import torch
from safetensors.torch import load, save
from transformers import PreTrainedModel

from hf_posenc import (
    POSITIONS,
    PosEncConfig,
    PosEncForMaskedLM,
    PosEncForMultipleChoice,
    PosEncForQuestionAnswering,
    PosEncForSequenceClassification,
    PosEncForTokenClassification,
)

FILE = Path(__file__).parent / "frozen.safetensors.xz"
HEADS = {
    head.__name__: head
    for head in (
        PosEncForMaskedLM,
        PosEncForMultipleChoice,
        PosEncForQuestionAnswering,
        PosEncForSequenceClassification,
        PosEncForTokenClassification,
    )
}
COMBINATIONS = ("learned+t5", "rope+alibi", "tupe+t5", "sinusoidal+rope", "lspe+fire", "rope+relative_key")
VARIANTS = {
    "alibi": {"position_embedding_kwargs": {"per_layer": True}},
    "t5": {"position_embedding_kwargs": {"per_layer": True}},
    "rope": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 4},
    "learned": {
        "norm_position": "post",
        "embedding_size": 4,
        "classifier_pooling": "cls",
        "classifier_hidden_act": "tanh",
        "scale_embeddings": True,
    },
}


def example(head: str) -> dict[str, torch.Tensor]:
    """Three texts of 9, 5 and 2 tokens, padded on both sides."""
    ids = (torch.arange(27).view(3, 9) * 7) % 15 + 1
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[1, 5:] = mask[2, :7] = 0
    types = (torch.arange(9) > 4).long().expand(3, 9)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: value.unsqueeze(1).repeat(1, 2, 1) for name, value in given.items()} if "Choice" in head else given


def answers(model: PreTrainedModel, head: str) -> torch.Tensor:
    """The head's logits at real tokens, or of the texts, flat."""
    with torch.no_grad():
        outputs = model.eval()(**example(head))
    if "Question" in head:
        real = example(head)["attention_mask"].bool()
        return torch.cat((outputs.start_logits[real], outputs.end_logits[real]))
    return outputs.logits.flatten()


def read() -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The configs by case, and all tensors by case and name."""
    tensors = load(lzma.decompress(FILE.read_bytes()))
    return json.loads(bytes(tensors.pop("configs").tolist())), tensors


def main() -> None:
    """Makes and writes them."""
    tensors, configs = {}, {}
    cases = [(name, name, {}, HEADS) for name in POSITIONS]
    cases += [
        (f"{name} changed", name, changes, ["PosEncForSequenceClassification"]) for name, changes in VARIANTS.items()
    ]
    cases += [(name, name, {}, ["PosEncForSequenceClassification"]) for name in COMBINATIONS]
    for case, kind, changes, heads in cases:
        for head in heads:
            torch.manual_seed(len(configs))
            sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
            sizes |= {"intermediate_size": 8, "max_position_embeddings": 12, "initializer_range": 0.4, "num_labels": 3}
            model = HEADS[head](PosEncConfig(position_embedding_type=kind, **{**sizes, **changes}))
            key = f"{case}/{head}"
            configs[key] = model.config.to_json_string(use_diff=False)
            tied = set(model._tied_weights_keys or ())
            tensors |= {f"{key}/{name}": t.clone() for name, t in model.state_dict().items() if name not in tied}
            tensors[f"{key}:answers"] = answers(model, head)
    tensors["configs"] = torch.frombuffer(bytearray(json.dumps(configs).encode()), dtype=torch.uint8)
    FILE.write_bytes(lzma.compress(save(tensors)))


if __name__ == "__main__":
    main()
