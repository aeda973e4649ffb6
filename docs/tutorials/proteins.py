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
# # Classify proteins
#
# ESM-2 reads amino acids as BERT reads words. This notebook fine-tunes one on labelled sequences, on real residues
# alone, without the padding that a batch of 50 and of 1,000 residues is full of, and hands it back as a stock
# `EsmForSequenceClassification`. With a GPU, or an evening, take `facebook/esm2_t12_35M_UR50D` for `esm`.

# %%
import random
import tempfile
from pathlib import Path

import pandas as pd
from transformers import AutoModelForSequenceClassification, EsmConfig, EsmModel, EsmTokenizer

import hf_posenc

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The data
#
# Sequences and labels; no spaces are needed. Made ones stand in for yours: both kinds hold the same ten hydrophobic
# residues, `secreted` ones at their start, as a signal peptide has them, the others anywhere.

# %%
draw = random.Random(0)


def protein(kind: str) -> str:
    """Makes a sequence of a kind."""
    rest = draw.choices("DEGHKNPQRSTY", k=draw.randint(20, 60))
    place = 0 if kind == "secreted" else draw.randint(10, len(rest))
    return "M" + "".join(rest[:place] + draw.choices("AFILVW", k=10) + rest[place:])


kinds = [draw.choice(("secreted", "other")) for _ in range(800)]
data = pd.DataFrame({"sequence": map(protein, kinds), "kind": kinds})
data.to_csv(folder / "proteins.csv", index=False)
data.head(4)

# %% [markdown]
# ## The model
#
# A tiny ESM-2 with random weights, so that this runs anywhere; it has the tokens of the published ones.

# %%
tokens = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
(folder / "vocab.txt").write_text("\n".join(tokens))
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
config = EsmConfig(
    vocab_size=33, pad_token_id=1, mask_token_id=32, token_dropout=True, position_embedding_type="rotary", **sizes
)
esm = str(folder / "esm")
EsmModel(config).save_pretrained(esm)
EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(esm)

# %% [markdown]
# ## Train
#
# The checkpoint is converted on the way: same weights, same answers.

# %%
classifier = hf_posenc.fit(list(data.sequence), list(data.kind), pretrained=esm, epochs=6, learning_rate=1e-3)
print(classifier.report_.score_table())

# %% [markdown]
# ## Back to a stock ESM
#
# The export is compared with the model before it is written. It needs neither hf_posenc nor remote code.

# %%
classifier.save(folder / "model")
hf_posenc.export(folder / "model", folder / "stock", to="native")
stock = AutoModelForSequenceClassification.from_pretrained(folder / "stock")
new = [protein("secreted"), protein("other")]
batch = EsmTokenizer.from_pretrained(folder / "stock")(new, padding=True, return_tensors="pt")
print(type(stock).__name__, [stock.config.id2label[int(row)] for row in stock(**batch).logits.argmax(-1)])
assert list(classifier.predict(new)) == ["secreted", "other"]
