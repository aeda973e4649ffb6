"""Inference: texts through a model. `logits` batches them; `backends` run an exported graph as PyTorch runs a model."""
