"""Pretrained weights to a classifier in one call."""

import json
import logging
from io import StringIO

import pytest
import torch
from conversion_harness import WORDS, sentences, tiny_source, tiny_tokenizer
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from hf_posenc import SCHEMES
from hf_posenc.conversion import convert
from hf_posenc.errors import UserError
from hf_posenc.finetuning.train import fine_tune
from hf_posenc.options import Options


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "bert"
    tiny_source(folder)
    tiny_tokenizer(folder)
    return str(folder)


@pytest.fixture
def files(tmp_path):
    paths = {}
    for split, name, count in (("train", "data", 48), ("validation", "validation", 16), ("test", "test", 16)):
        # which of two words is first: nothing but order decides
        first, second = WORDS[2:4]
        examples = [
            {"text": f"{a} {text} {b}", "label": "yes" if a == first else "no"}
            for row, text in enumerate(sentences(count, len(paths)))
            for a, b in [(first, second) if row % 2 else (second, first)]
        ]
        path = tmp_path / f"{split}.jsonl"
        path.write_text("".join(json.dumps(example) + "\n" for example in examples))
        paths[name] = str(path)
    return paths


@pytest.fixture
def run(tmp_path, files):
    """Fine-tunes for two steps: the result, and what was printed."""

    def call(**options):
        console = Console(file=StringIO(), width=200)
        values = {"device": "cpu", "max_steps": 2, "batch_size": 8, "seed": 1, "set": {"save_strategy": "no"}}
        options = Options.of(**{**files, **values, "output": str(tmp_path / "run"), **options})
        return fine_tune(options, baselines=False, console=console), console.file.getvalue()

    return call


@pytest.fixture
def log(caplog, monkeypatch):
    for name in ("transformers", "hf_posenc"):  # whose loggers keep their lines to themselves
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    return caplog


@pytest.mark.parametrize("scheme", [None, "rope"])
def test_a_run_begins_with_the_converted_weights(run, tmp_path, source, scheme, log):
    result, printed = run(pretrained=source, scheme=scheme, learning_rate=0.0)
    kind = scheme or "learned"
    convert(source, tmp_path / "converted", scheme=scheme, head="feature-extraction", seed=1)
    wanted, trained = (load_file(tmp_path / name / "model.safetensors") for name in ("converted", "run"))
    for name, value in wanted.items():
        torch.testing.assert_close(trained[f"model.{name}"], value, rtol=0, atol=0)
    assert f"{kind} as it was" in printed if scheme is None else f"learned to {kind}" in printed
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert model.config.position_embedding_type == kind
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert result.report.options["pretrained"] == "bert"
    assert "LOAD REPORT" not in log.text


def test_checkpoints_that_follow_each_other_at_once_are_no_warning(run, log):
    small = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    transformers_logging.warning_once.cache_clear()
    run(set={**small, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}, max_steps=3)
    assert "mtime" not in log.text


def test_pretrained_weights_take_a_scheme_of_ones_own(run, tmp_path, source):
    file = tmp_path / "far_away.py"
    file.write_text(
        "from hf_posenc import PositionScheme\n\n\n"
        "class FarAway(PositionScheme):\n"
        '    name = "far_away"\n\n'
        "    def bias(self, tokens):\n"
        "        return -tokens.distances().abs()[:, None] / 10\n"
    )
    run(pretrained=source, scheme_file=str(file), scheme="far_away")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["position_embedding_type"] == "far_away"
    assert (tmp_path / "run" / "far_away.py").exists()
    for pretrained in (source, None):
        with pytest.raises(UserError, match=r"scheme='far_awy' is unknown. Did you mean 'far_away'"):
            run(data="nowhere", scheme="far_awy", overwrite=True, pretrained=pretrained)
    del SCHEMES["far_away"]
