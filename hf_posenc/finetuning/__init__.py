"""Fine-tuning: from a file or a Hub data set to a checkpoint, and from a checkpoint to answers.

- `train` owns the road; `start` makes tokenizer and model, `loading` reads checkpoints.
- `estimator`: `fit`, `load` and the estimators of scikit-learn's kind.
- `prediction`, `backends`: answers for texts and files, and scores.
"""
