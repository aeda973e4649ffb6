"""Lines of progress, which end nothing where they can't be printed."""

import contextlib
from typing import Any

from rich.console import Console


class ProgressConsole(Console):
    """Standard output, for lines that are dropped where its reader has left or its disk is full."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints as rich does, with escapes for letters that the output's encoding lacks."""
        if self.is_jupyter:
            super().print(*objects, **options)
            return
        with contextlib.suppress(OSError):
            with self.capture() as captured:  # which writes out what an earlier line left behind
                super().print(*objects, **options)
            self.file.write(captured.get().encode(self.encoding, "backslashreplace").decode(self.encoding))
            self.file.flush()

    def on_broken_pipe(self) -> None:
        """Goes on, where rich's own ends the program."""
