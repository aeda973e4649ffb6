# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # MiniLM beyond 512 tokens
#
# all-MiniLM-L6-v2 has a table of 512 positions and cuts what is longer. This notebook puts RoPE in the table's place,
# heals the model on a little text, and lets it read 1,024 tokens. Two minutes on a laptop; a real healing takes
# longer.

# %%
import os
import tempfile
from pathlib import Path

import pandas as pd
import torch

import hf_posenc

# A folder with the weights, or their name on the Hub.
minilm = os.environ.get("HF_POSENC_MINILM", "sentence-transformers/all-MiniLM-L6-v2")
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## As it is
#
# Converted without another scheme the model computes the same as before, to rounding. It knows 512 positions.

# %%
same = hf_posenc.convert(minilm, folder / "same", head="feature-extraction")
print(same.model.config.position_embedding_type, same.model.config.max_position_embeddings)
same

# %% [markdown]
# ## Another scheme, healed
#
# One command swaps the scheme, heals at the lengths that the original can read, then extends. Healing needs texts,
# but no labels: the model learns to give the original's hidden states. 30 steps on short sentences are a taste: on
# texts like yours take the default, 2,000.

# %%
examples = Path(hf_posenc.__file__).parent / "data" / "blimp_order"
texts = list(pd.read_json(examples / "train.jsonl.gz", lines=True).text.head(2000))
rope = hf_posenc.convert(
    minilm,
    folder / "rope",
    head="feature-extraction",
    scheme="rope",
    healing=hf_posenc.Healing(texts, max_steps=30),
    extension="dynamic",
    max_position_embeddings=1024,
)
assert rope.report.after.distance < rope.report.before.distance
assert rope.model.config.max_position_embeddings == 1024
rope

# %% [markdown]
# It reads 1,024 tokens, and answers in one pass:

# %%
long_text = " ".join(texts[:140])
batch = rope.tokenizer([long_text], truncation=True, max_length=1024, return_tensors="pt")
with torch.no_grad():
    embedding = rope.model(**batch).last_hidden_state.mean(1)
print(tuple(batch["input_ids"].shape), tuple(embedding.shape))
assert batch["input_ids"].shape[1] == 1024

# %% [markdown]
# ## What a real healing gives
#
# [Longer inputs](../long-inputs.md#one-sentence-in-a-long-text) measures it on texts that state one passkey, with a
# picture: how many queries find their text, read so, in windows or cut.
