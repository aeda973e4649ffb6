"""Transformers' pipelines work from a checkpoint's folder alone."""

import pytest
import torch
from remote_code_harness import PIPED, PIPELINES, TEXTS, Report, tiny_model, tiny_tokenizer
from transformers import pipeline


@pytest.mark.parametrize(("scheme", "task"), PIPED)
def test_a_pipeline_gives_a_stranger_the_same_results(first_stranger: Report, scheme: str, task: str) -> None:
    head = PIPELINES[task]
    said = first_stranger.said(f"{scheme}/{task}")
    assert said["class"] == head
    assert said["module"].startswith("transformers_modules.")
    # The author's: one text at a time, so no padding, with a tokenizer and a model made by hand.
    pipe = pipeline(task, model=tiny_model(scheme, head), tokenizer=tiny_tokenizer())
    mine = [pipe(text) for text in TEXTS]
    if task == "feature-extraction":
        theirs = first_stranger.outputs(f"{scheme}/{task}")
        for index, vectors in enumerate(mine):
            rows = torch.tensor(vectors)
            # The batch's pipeline gives the padding's rows too.
            torch.testing.assert_close(theirs[str(index)][:, : rows.shape[1]], rows, rtol=0, atol=1e-5)
        return
    for found, expected in zip(said["found"], mine, strict=True):
        found, expected = ([each] if isinstance(each, dict) else each for each in (found, expected))
        assert len(found) == len(expected) > 0
        for there, here in zip(found, expected, strict=True):
            assert {**there, "score": 0} == {**here, "score": 0}
            assert there["score"] == pytest.approx(float(here["score"]), abs=1e-5)
