"""What the tests of this folder share: tiny checkpoints of every scheme and head, and strangers who load them."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertTokenizer

import hf_posenc
from hf_posenc import SCHEMES, register_scheme
from tests.support.clean_process import outputs
from tests.support.common import perturb, schemes_restored, tiny_config, word_tokenizer

CLEAN_PROCESS = Path(__file__).with_name("clean_process.py")
CODE = Path(hf_posenc.__file__).parent / "model"

# A scheme that a test registered has no file in the package, so it can't travel.
BUILTIN = [name for name, scheme in SCHEMES.items() if scheme.__module__.startswith("hf_posenc.")]
HEADS = {
    "PosEncModel": "AutoModel",
    "PosEncForSequenceClassification": "AutoModelForSequenceClassification",
    "PosEncForMaskedLM": "AutoModelForMaskedLM",
    "PosEncForTokenClassification": "AutoModelForTokenClassification",
    "PosEncForQuestionAnswering": "AutoModelForQuestionAnswering",
    "PosEncForMultipleChoice": "AutoModelForMultipleChoice",
}
"""The model classes, and the Auto class that loads each."""
HEAD = "PosEncForSequenceClassification"
AUTO_MAP = {"AutoConfig": "configuration_posenc.PosEncConfig"}
AUTO_MAP |= {auto_class: f"modeling_posenc.{head}" for head, auto_class in HEADS.items()}
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
(MINIMUM_TRANSFORMERS,) = re.findall(r"'transformers\W*>=([\d.]+)", str(PROJECT["dependencies"]))

# How a checkpoint travels doesn't depend on its head and its scheme together: one scheme meets all heads.
ALL_HEADS = [("t5", head) for head in HEADS]
PAIRS = [*((scheme, HEAD) for scheme in BUILTIN if scheme != "t5"), *ALL_HEADS]
"""The checkpoints: scheme and head. Every scheme, and every head."""

LABELS = {"bad": 0, "fair": 1, "good": 2}
WORDS = "the a dog cat sees chased bites and that who old big".split()
TEXTS = ["The [MASK] chased the old cat", "a big cat sees [MASK] dog and the cat that bites", "cat [MASK]"]

BATCH: dict[str, Tensor] = {
    # A full row, two padded right and one padded left.
    "input_ids": torch.tensor(
        [
            [2, 41, 17, 93, 8, 55, 62, 30, 71, 12, 88, 3],
            [2, 17, 41, 8, 93, 3, 0, 0, 0, 0, 0, 0],
            [2, 55, 62, 30, 71, 12, 88, 99, 3, 0, 0, 0],
            [0, 0, 0, 0, 0, 2, 41, 17, 93, 8, 55, 3],
        ]
    ),
    "token_type_ids": torch.tensor([[0] * 5 + [1] * 7, [0] * 12, [0] * 4 + [1] * 8, [0] * 12]),
}
BATCH["attention_mask"] = (BATCH["input_ids"] != 0).long()


def tiny_model(scheme: str, head: str, **overrides: Any) -> Any:
    """A model in eval mode whose weights are all far from their start, so that each of them shows in the outputs."""
    labels = {"id2label": {number: label for label, number in LABELS.items()}, "label2id": LABELS}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return perturb(getattr(hf_posenc, head)(tiny_config(scheme, **{**labels, **overrides}))).eval()


def tiny_tokenizer() -> BertTokenizer:
    return word_tokenizer(WORDS, do_lower_case=True)


def code_of(config: hf_posenc.PosEncConfig) -> dict[str, str]:
    """The files of code that travel with a configuration."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return {path.name: path.read_text() for path in Path(folder).glob("*.py")}


def save_tiny(folder: Path, scheme: str, head: str = HEAD, **overrides: Any) -> Path:
    """A folder with a tiny model and its tokenizer."""
    tiny_model(scheme, head, **overrides).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@dataclass
class Checkpoints:
    """A folder per scheme and head, saved when it is first asked for."""

    root: Path

    def folder(self, scheme: str, head: str = HEAD) -> Path:
        folder = self.root / scheme / head / "checkpoint"
        return folder if folder.exists() else save_tiny(folder, scheme, head)

    def expected(self, scheme: str, head: str = HEAD) -> dict[str, Tensor]:
        """What the model that was saved gives for `BATCH`."""
        return outputs(tiny_model(scheme, head), BATCH)


def borrower(checkpoint: Path, folder: Path, repository: str) -> Path:
    """A copy of a checkpoint without code, which uses a repository's; its config is of a later version, too."""
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("*.py"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {auto: f"{repository}--{name}" for auto, name in AUTO_MAP.items()}}
    (folder / "config.json").write_text(json.dumps({**config, "hidden_sise": 7, "posenc_version": "9999.1.0"}))
    return folder


def put_in_hub_cache(folder: Path, hf_home: Path, repository: str) -> None:
    """Lays a folder out as the Hub client does after a download, so that it is found without a network."""
    revision = "0123456789abcdef0123456789abcdef01234567"
    cached = hf_home / "hub" / f"models--{repository.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(revision)
    shutil.copytree(folder, cached / "snapshots" / revision)


@dataclass
class Report:
    """What a stranger saw."""

    hidden: str | None
    jobs: dict[str, dict[str, Any]]
    tensors: dict[str, Tensor]

    def answer(self, job: str) -> dict[str, Any]:
        """What a job that went well said; the code was the checkpoint's."""
        answer = self.jobs[job]
        assert "error" not in answer, f"{job} failed in the clean process:\n{answer['traceback']}"
        assert answer["module"].startswith("transformers_modules.")
        return answer

    def outputs(self, job: str) -> dict[str, Tensor]:
        return {name.partition("#")[2]: t for name, t in self.tensors.items() if name.partition("#")[0] == job}


def model_job(
    load: Path | str, auto_class: str = HEADS[HEAD], save: Path | None = None, trust: bool = True
) -> dict[str, Any]:
    """An order to load a model, and to save it again if it says where."""
    return {"load": str(load), "auto_class": auto_class, "trust": trust, "save": save and str(save)}


def clean_environment(hf_home: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON", "TRANSFORMERS_"))
    }
    return {**kept, "HF_HOME": str(hf_home), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_clean(jobs: dict[str, dict[str, Any]], place: Path, hf_home: Path) -> Report:
    """Does jobs (see clean_process.py) in one new process without hf_posenc, network, or a newer transformers."""
    place.mkdir(parents=True)
    save_file(BATCH, place / "batch")
    (place / "order").write_text(json.dumps({"jobs": jobs, "version": MINIMUM_TRANSFORMERS}))
    done = subprocess.run(
        [sys.executable, "-I", str(CLEAN_PROCESS), str(place)],
        cwd=place,
        env=clean_environment(hf_home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"the clean process died:\n{done.stderr[-4000:]}"
    return Report(**json.loads((place / "report").read_text()), tensors=load_file(place / "tensors"))


def assert_same_outputs(outputs: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 1e-6) -> None:
    """Equal names, shapes and dtypes, numbers equal to `atol`; a NaN is never equal."""
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(outputs[name], value, rtol=0, atol=atol, msg=lambda text, n=name: f"{n}: {text}")


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme" / "recency.py"
OWN = {"recency": "recency", "combined": "learned+recency", "two": "recency+rope+stripes"}
STRIPES = '''
"""A scheme that has a helper in a file beside it."""
from __future__ import annotations
import torch
from hf_posenc import AddedPosition
from .stripe_width import WIDTH; from torch import nn
from  hf_posenc.model.scheme_math import require, whole as size; import math


class Stripes(AddedPosition):
    def __init__(self, *, hidden_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(2, require("hidden_size", hidden_size, size()))

    def encodings(self, positions: torch.Tensor) -> torch.Tensor:
        return self.table(positions // WIDTH % 2)
'''


@contextlib.contextmanager
def own_schemes(place: Path) -> Iterator[None]:
    """Inside, the schemes of `OWN` are registered, as in their author's process; one is a package in `place`."""
    package = place / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "stripes.py").write_text(STRIPES)
    (package / "stripe_width.py").write_text("WIDTH = 3\n")
    with schemes_restored("recency", "my_package"), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        from my_package.stripes import Stripes  # type: ignore[import-not-found]

        assert register_scheme(EXAMPLE, "learned+recency") == ["recency"]
        register_scheme(Stripes, "stripes")
        yield
