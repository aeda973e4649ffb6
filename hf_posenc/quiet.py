"""Silences progress bars, warnings and prints while something runs, and restores what the user had set."""

import contextlib
import io
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Silences all that is logged and no error."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def errors_alone(module: str) -> Iterator[None]:
    """Silences the warnings of one module of transformers."""
    logger = logging.getLogger(module)

    def is_grave(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    # A filter: setting the logger's level makes from_pretrained warn of unsharded weights.
    logger.addFilter(is_grave)
    try:
        yield
    finally:
        logger.removeFilter(is_grave)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Hides the progress bars of transformers and datasets."""
    import datasets
    from transformers.utils import logging as bars

    weights, maps = bars.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    bars.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if weights:
            bars.enable_progress_bar()
        if not maps:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """No progress bars, no warnings, nothing that a Trainer prints."""
    with without_bars(), without_warnings(), contextlib.redirect_stdout(io.StringIO()):
        yield
