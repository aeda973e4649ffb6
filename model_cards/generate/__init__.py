"""Generates the model cards (`cards`), the evidence page (`evidence`) and the tables of other pages (`pages`)."""
