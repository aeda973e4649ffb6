"""A stranger's process: what it is told, and what its answer is compared with."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from hf_posenc.hub import publishing
from hf_posenc.isolated_load import Answer, IsolatedLoadFailed, load_isolated

ANSWER = Answer(torch.ones(1, 3), [[5, 6]])
SENT = SimpleNamespace(output=torch.ones(1, 3), token_ids=[5, 6])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, None),
        ({"output": torch.ones(2, 2)}, "with the same files and input it gives another output"),
        ({"output": torch.ones(1, 3).bfloat16()}, "with the same files and input it gives another output"),
        ({"output": torch.full((1, 3), 1.001)}, "with the same files and input it gives another output"),
        ({"token_ids": [[5, 7]]}, f"the tokenizer reads {publishing.TEXT!r} differently"),
    ],
)
def test_every_difference_from_what_was_sent_is_named(changed, message):
    assert publishing._difference(dataclasses.replace(ANSWER, **changed), SENT) == message


def test_the_loading_process_of_publishing_gets_no_token_and_no_settings(tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PYTHONPATH", "PYTHONSTARTUP", "MY_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    environment = publishing.environment(tmp_path)
    assert "secret" not in environment.values()
    assert not any(name.startswith("PYTHON") for name in environment)


def test_a_stranger_that_takes_too_long_is_given_up(tmp_path):
    with pytest.raises(IsolatedLoadFailed, match=r"took more than 0\.01 s"):
        load_isolated(tmp_path, "nowhere", "AutoModel", inputs={}, environment={}, timeout=0.01)
