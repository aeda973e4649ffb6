"""Fine-tuning: from a file or a Hub data set to a checkpoint, and from a checkpoint to answers.

- `train` owns the road; `start` makes tokenizer and model.
- `estimator`: `fit`, `load` and the estimators of scikit-learn's kind. `functions`: what the commands do.
- `prediction`: answers for texts and files, and scores.
"""
