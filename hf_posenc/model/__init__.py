"""The checkpoint: every file in this folder, and none outside it, travels with a saved model."""

# Fills the table of schemes, whichever module is imported first.
from .configuration_posenc import PosEncConfig as PosEncConfig
