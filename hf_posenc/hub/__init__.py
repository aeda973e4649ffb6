"""Publishing a checkpoint on the Hugging Face Hub, verified by loading it back."""

from .publishing import Published, publish

__all__ = ["Published", "publish"]
