"""Writes what the BERT of transformers 4.57 computes with relative positions, which transformers 5 no longer has.

It needs an environment of its own, since it imports another transformers than the tests do:

    python3 -m venv /tmp/bert
    /tmp/bert/bin/pip install "transformers==4.57.*" torch==2.13.0 safetensors
    /tmp/bert/bin/python tests/peers/make_bert_golden.py

It writes bert_relative_key.safetensors and bert_relative_key_query.safetensors next to itself: weights, a batch with
padding, and BertForSequenceClassification's hidden states, logits, loss and gradients. test_peers.py compares ours.
"""

import os
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

SIZES = {
    "vocab_size": 23,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
}
LENGTHS = (11, 4, 1, 7)


def golden(kind: str) -> dict[str, torch.Tensor]:
    """Weights (`weight.*`), inputs (`input.*`), outputs (`output.*`) and gradients (`gradient.*`) of one model."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SIZES,
        num_labels=3,
        position_embedding_type=kind,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # wide enough that every term counts
            parameter += 0.2 * torch.randn(parameter.shape)
    ids, mask = torch.zeros(len(LENGTHS), 11, dtype=torch.int64), torch.zeros(len(LENGTHS), 11, dtype=torch.int64)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(1, SIZES["vocab_size"], (length,))
        mask[row, :length] = 1
    types = (torch.arange(11) > 3).long().expand_as(ids).contiguous()
    labels = torch.tensor([0, 2, 1, 2])
    out = model(ids, attention_mask=mask, token_type_ids=types, labels=labels, output_hidden_states=True)
    out.loss.backward()
    tensors = {"input.ids": ids, "input.mask": mask, "input.types": types, "input.labels": labels}
    tensors |= {"output.logits": out.logits, "output.loss": out.loss}
    tensors |= {f"output.hidden.{layer}": state for layer, state in enumerate(out.hidden_states)}
    for name, parameter in model.named_parameters():
        tensors[f"weight.{name}"] = parameter
        if "distance_embedding" in name or "self.query.weight" in name:
            tensors[f"gradient.{name}"] = parameter.grad
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def main() -> None:
    """Writes both files, each whole or not at all."""
    if not transformers.__version__.startswith("4.57."):
        raise SystemExit(f"This needs transformers 4.57, not {transformers.__version__}: see the top of this file.")
    for kind in ("relative_key", "relative_key_query"):
        path = Path(__file__).with_name(f"bert_{kind}.safetensors")
        half_written = path.with_suffix(".tmp")
        # One entry of metadata: the file's bytes are then the same in every run.
        save_file(golden(kind), half_written, {"by": f"transformers {transformers.__version__}, {torch.__version__}"})
        os.replace(half_written, path)
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
