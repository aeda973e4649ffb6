"""Checkpoints: the one way to open one, `opening`, `loading` and `tokenizers`; and the keeper of output folders."""
