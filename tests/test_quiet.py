"""What was silenced is afterwards as the user had set it."""

import logging
import sys

import datasets
import pytest
from transformers.utils import logging as bars

from hf_posenc import quiet


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("error", [None, RuntimeError])
def test_bars_and_levels_are_afterwards_what_they_were(shown, error):
    loggers = [logging.getLogger(name) for name in ("hf_posenc", "transformers")]
    before = [logger.level for logger in loggers], bars.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    streams = sys.stdout, sys.stderr, logging.root.manager.disable
    switches = (bars.enable_progress_bar, datasets.enable_progress_bars)
    if not shown:
        switches = (bars.disable_progress_bar, datasets.disable_progress_bars)
    try:
        for switch in switches:
            switch()
        for logger in loggers:
            logger.setLevel(logging.INFO)
        with pytest.raises(error) if error else quiet.silence(), quiet.silence():
            assert (sys.stdout, sys.stderr, logging.root.manager.disable) == streams  # other threads use them, too
            assert not bars.is_progress_bar_enabled()
            assert datasets.are_progress_bars_disabled()
            assert [logger.isEnabledFor(logging.WARNING) for logger in loggers] == [False] * 2
            if error:
                raise error
        assert [logger.isEnabledFor(logging.INFO) for logger in loggers] == [True] * 2
        assert bars.is_progress_bar_enabled() == shown
        assert datasets.are_progress_bars_disabled() != shown
    finally:
        for logger, level in zip(loggers, before[0], strict=True):
            logger.setLevel(level)
        (bars.enable_progress_bar if before[1] else bars.disable_progress_bar)()
        (datasets.disable_progress_bars if before[2] else datasets.enable_progress_bars)()
