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
# # Classify your own texts
#
# From a csv to a classifier that says how good it is. Two minutes on a laptop without a GPU. You need hf_posenc in
# this environment ([Install](../index.md#install)) and its extra `plots`.

# %%
import tempfile
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

import hf_posenc

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The data
#
# Your file needs a column of texts and a column of labels. Here 4,000 sentences of BLiMP stand in for it, which come
# with the package. They are in pairs of the same words in two orders, of which only one is English: a model that can't
# see word order guesses.

# %%
examples = Path(hf_posenc.__file__).parent / "data" / "blimp_order"
rows = pd.read_json(examples / "train.jsonl.gz", lines=True)
rows = rows[rows.pair_id.isin(rows.pair_id.unique()[:2000])][["text", "label"]]
rows.to_csv(folder / "mine.csv", index=False)
rows.head(4)

# %% [markdown]
# ## Train
#
# `fit` takes texts and labels. Nothing else has to be said: it sets a tenth of the texts aside, keeps the epoch that
# does best on them, and compares the result with linear models, which see words, and pairs of neighbouring words.
#
# This trains a small encoder from scratch. With real data start from pretrained weights instead:
# `hf_posenc.fit(texts, labels, pretrained="sentence-transformers/all-MiniLM-L6-v2")`.

# %%
data = pd.read_csv(folder / "mine.csv")
classifier = hf_posenc.fit(list(data.text), list(data.label), size="tiny", epochs=8)
Markdown(classifier.report_.score_table())

# %% [markdown]
# ## Ask it
#
# `predict` gives labels, `predict_proba` probabilities, in the order of `classes_`. Two pairs that nobody trained on:

# %%
test = pd.read_json(examples / "test.jsonl.gz", lines=True)
pairs = test[test.pair_id.isin(test.pair_id.head(2))]
questions = list(pairs.text.sort_values(key=lambda texts: texts.str.len()))
probabilities = classifier.predict_proba(questions)
pd.DataFrame(probabilities, index=questions, columns=classifier.classes_).round(3)

# %% [markdown]
# And all of them:

# %%
accuracy = classifier.score(list(test.text), list(test.label))
print(f"{accuracy:.3f} of {len(test)} test sentences are right")
assert accuracy > 0.6

# %% [markdown]
# ## Does word order matter for your data?
#
# The same encoder without positions: where it does as well, word order hardly matters. Here it can only guess.

# %%
options = {"size": "tiny", "epochs": 2, "baselines": False}
blind = hf_posenc.fit(list(data.text), list(data.label), scheme="none", **options)
without = blind.score(list(test.text), list(test.label))
print(f"without positions: {without:.3f}, with: {accuracy:.3f}")
assert without < 0.55

# %% [markdown]
# One run each proves little. `hf_posenc.compare("mine.csv", schemes=["none", "learned", "rope"], output="results")`
# repeats the comparison with five seeds and tests the differences: [Compare schemes](../comparing.md).
#
# ## Keep it
#
# The folder is a Transformers checkpoint that carries its code: `pipeline("text-classification", folder,
# trust_remote_code=True)` runs it where hf_posenc isn't installed, and `hf-posenc publish` sends it to the Hub.

# %%
classifier.save(folder / "model")
again = hf_posenc.load(folder / "model")
assert list(again.predict(questions)) == list(classifier.predict(questions))
sorted(path.name for path in (folder / "model").iterdir())
