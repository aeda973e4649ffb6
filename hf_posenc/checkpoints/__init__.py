"""Checkpoints: the one way to open one, `sources`, `loading` and `tokenizers`; and the keeper of output folders."""
