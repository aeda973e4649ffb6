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
# # A scheme, from the first line to a checkpoint
#
# An idea for a positional scheme, which ends as a checkpoint that strangers load: written, checked, compared with
# `none` and `rope`, shared. [Write a scheme](../own-scheme.md) has all hooks.

# %%
import sys
import tempfile
from pathlib import Path

import torch

import hf_posenc

folder = Path(tempfile.mkdtemp())
sys.path.insert(0, str(folder))

# %% [markdown]
# ## One file, one class
#
# A scheme travels with its checkpoints, so it stands in a file of its own. This one is a bias on the attention
# logits: a learned slope per head on log(1 + distance), for keys on the left and on the right.

# %%
(folder / "log_slopes.py").write_text('''
import torch
from torch import nn
from hf_posenc import DistanceBias


class LogSlopes(DistanceBias):
    """A bias -s log(1 + |p_j - p_i|) on the logits, with a slope s for each head and side."""

    name = "log_slopes"

    def __init__(self, *, num_heads: int):
        super().__init__()
        self.slopes = nn.Embedding(2, num_heads)

    def of_distance(self, distance, layer):  # int64 (R,) -> (R, H)
        slopes = self.slopes((distance > 0).long())
        return -slopes * distance.abs().float().log1p()[:, None]
''')
from log_slopes import LogSlopes

hf_posenc.register_scheme(LogSlopes)

# %% [markdown]
# ## Checked
#
# The suite holds a scheme to what the encoder, the Trainer and the Hub rely on: padding and packing don't change
# answers, gradients flow, a saved model is the same. Each fault comes with its usual cause. Export and
# remote code take longest; here are the quick ones.

# %%
quick = [name for name in hf_posenc.SCHEME_CHECKS if name not in ("export", "remote_code")]
report = hf_posenc.check_scheme(LogSlopes, only=quick)
assert report.ok
print(report)

# %% [markdown]
# ## In a model
#
# Two sentences of the same words, in another order. Without positions the mean of the hidden states is the same.

# %%
# the dog chased the cat, the cat chased the dog
ids = torch.tensor([[1, 2, 3, 1, 4], [1, 4, 3, 1, 2]])
for scheme in ("none", "rope", "log_slopes"):
    config = hf_posenc.PosEncConfig.from_size("tiny", vocab_size=5, position_embedding_type=scheme)
    dog, cat = hf_posenc.PosEncModel(config).eval()(ids).last_hidden_state.mean(1)
    print(f"{scheme:10} {'same' if torch.allclose(dog, cat, atol=1e-6) else 'different'}")

# %% [markdown]
# A bias of the distance alone tells a sentence from its reversal by its two sides. Is it any good?
#
# ## Compared
#
# The same encoder, data and steps; only the scheme differs. One seed, 2,000 sentences of BLiMP and few steps show how
# it is done, not which is best: `hf_posenc.compare("blimp_order", schemes=["none", "rope", "log_slopes"],
# scheme_file="log_slopes.py", output="results")` runs five, and tests the differences.

# %%
import pandas as pd

examples = Path(hf_posenc.__file__).parent / "data" / "blimp_order"
train = pd.read_json(examples / "train.jsonl.gz", lines=True)
train = train[train.pair_id.isin(train.pair_id.unique()[:1000])]
test = pd.read_json(examples / "test.jsonl.gz", lines=True)
options = {"size": "tiny", "epochs": 6, "baselines": False}
scores, models = {}, {}
for scheme in ("none", "rope", "log_slopes"):
    model = hf_posenc.fit(list(train.text), list(train.label), scheme=scheme, **options)
    scores[scheme] = model.score(list(test.text), list(test.label))
    models[scheme] = model
pd.Series(scores, name="accuracy").round(3)

# %% [markdown]
# ## Shared
#
# The checkpoint holds `log_slopes.py` beside the encoder's code. Whoever loads it needs transformers alone, and
# `trust_remote_code=True`.

# %%
models["log_slopes"].save(folder / "model")
print(*sorted(path.name for path in (folder / "model").glob("*.py")), sep="\n")
assert (folder / "model" / "log_slopes.py").is_file()
