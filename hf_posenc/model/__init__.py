"""The checkpoint: every file in this folder, and none outside it, travels with a saved model."""
