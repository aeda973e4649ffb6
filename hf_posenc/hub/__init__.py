"""Publishing a checkpoint on the Hugging Face Hub, verified by loading it back.

`publishing` collects the files by their names (`collecting`), refuses other people's files in the repository,
uploads, verifies the commit, and sends the `card`.
"""

from .publishing import Published, publish

__all__ = ["Published", "publish"]
