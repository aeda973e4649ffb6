"""State that a process has once: silenced or changed while something runs, and afterwards as the user had set it."""

import contextlib
import io
import logging
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

_LOCK = threading.RLock()
_OF_DETERMINISM = (
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "ASCEND_LAUNCH_BLOCKING",
    "HCCL_DETERMINISTIC",
    "FLASH_ATTENTION_DETERMINISTIC",
)
"""Environment variables that transformers sets for `full_determinism`."""
_LOGGERS = ("hf_posenc", "transformers", "datasets", "huggingface_hub", "accelerate")
"""Of the libraries that a training or an export works with."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Lets one thread at a time change what a process has once, and leaves it as it was.

    These are the generators of random numbers, PyTorch's default dtype and deterministic algorithms, the environment
    variables that belong to these, and what is silenced here.
    """
    import numpy as np
    import torch

    with _LOCK, torch.random.fork_rng():
        generators = random.getstate(), np.random.get_state()
        dtype, cudnn = torch.get_default_dtype(), torch.backends.cudnn
        algorithms = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        cudnn_switches = cudnn.deterministic, cudnn.benchmark
        environment = {name: os.environ.get(name) for name in _OF_DETERMINISM}
        try:
            yield
        finally:
            random.setstate(generators[0])
            np.random.set_state(generators[1])
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(algorithms[0], warn_only=algorithms[1])
            cudnn.deterministic, cudnn.benchmark = cudnn_switches
            for name, value in environment.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@contextlib.contextmanager
def without_warnings(*others: str) -> Iterator[None]:
    """Silences all that libraries log and no error, by the levels of their loggers: transformers', and `others`."""
    from datasets.utils import logging as of_datasets
    from huggingface_hub.utils import logging as of_hub
    from transformers.utils import logging as of_transformers

    for library in (of_transformers, of_datasets, of_hub):  # which set their levels when they are first asked
        library.get_verbosity()
    loggers = [logging.getLogger(name) for name in (*_LOGGERS, *others)]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


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
def silence(*others: str) -> Iterator[None]:
    """No progress bars, and no warnings of libraries; see `without_warnings`."""
    with without_bars(), without_warnings(*others):
        yield


class _OtherThreads(io.TextIOBase):
    """A stream that drops what one thread writes."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.dropped = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Writes what another thread writes."""
        return len(text) if threading.get_ident() == self.dropped else self.stream.write(text)

    def flush(self) -> None:
        """Flushes the stream."""
        self.stream.flush()


@contextlib.contextmanager
def without_prints() -> Iterator[None]:
    """Drops what this thread prints, for libraries that print and have no switch for it; other threads print on."""
    with _LOCK, contextlib.redirect_stdout(_OtherThreads(sys.stdout)):
        yield
