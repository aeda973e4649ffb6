"""Training: from encoded data and a model to a checkpoint with its results.

- `recipe` makes transformers' arguments of the options; `trainer` is the stock Trainer with the loss of `metrics`.
- `run_folder`: the folder of a run.
- What a run says of itself: `metrics` and baselines, and the `report` that has all, which the card shows.
"""
