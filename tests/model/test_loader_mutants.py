"""250 damaged files of weights: each loads as it says, or is refused in words."""

import json
import logging
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from remote_code_harness import tiny_model
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from hf_posenc import PosEncForSequenceClassification

SCHEMES = ("none", "learned", "lspe", "rope", "t5", "fire", "deberta", "tupe+t5")
pytestmark = pytest.mark.slow
OPTIONS = settings(
    max_examples=int(os.environ.get("HF_POSENC_MUTANTS", "250")),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint for each scheme."""
    root = tmp_path_factory.mktemp("mutants")
    for scheme in SCHEMES:
        tiny_model(scheme, "PosEncForSequenceClassification").save_pretrained(root / scheme)
    return root


NUMBERS = st.sampled_from([0, 1, -1, 2, 31, 33, 64, 2**31, 2**40, 2**63, 2**64, 10**30, 1.5, "1", None])
DTYPES = st.sampled_from(["F16", "BF16", "F64", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F4", "X", "", 3, None])


@st.composite
def mutated_files(draw: st.DrawFn) -> tuple[str, Callable[[bytes], bytes], str]:
    """A scheme, and what changes its weights' file."""
    scheme = draw(st.sampled_from(SCHEMES))
    kind = draw(
        st.sampled_from(
            ["length", "cut", "bytes", "dtype", "shape", "offsets", "rename", "remove", "repeat", "metadata", "extra",
             "type", "deep", "tail"]
        )
    )  # fmt: skip
    pick, size, number = draw(st.integers(0, 10**6)), draw(st.integers(0, 400)), draw(NUMBERS)
    dtype, put, other = draw(DTYPES), draw(st.binary(min_size=1, max_size=4)), draw(st.text(max_size=5))
    length = draw(st.sampled_from([0, 1, 7, 2**16, 2**27, 2**31, 2**40, 2**63, 2**64 - 1, -1, 1]))

    def change(content: bytes) -> bytes:
        (true,) = struct.unpack("<Q", content[:8])
        header, data = content[8 : 8 + true], content[8 + true :]
        if kind == "length":
            return struct.pack("<Q", length if length >= 0 else true + 1) + header + data
        if kind == "cut":
            return content[: pick % len(content)]
        if kind == "tail":
            return content + put
        if kind == "bytes":
            place = pick % len(header)
            header = header[:place] + put + header[place + len(put) :]
            return struct.pack("<Q", len(header)) + header + data
        entries = json.loads(header)
        names = sorted(name for name in entries if name != "__metadata__")
        name = names[pick % len(names)]
        entry = entries[name]
        if kind == "dtype":
            entry["dtype"] = dtype
        elif kind == "shape":
            axis = size % (len(entry["shape"]) + 1)
            entry["shape"][axis : axis + 1] = [number]
        elif kind == "offsets":
            entry["data_offsets"][size % 2] = number
        elif kind == "rename":
            entries[other] = entries.pop(name)
        elif kind == "remove":
            del entries[name]
        elif kind == "repeat":
            entries[name] = dict(entries[names[(pick + 1) % len(names)]])
        elif kind == "metadata":
            entries["__metadata__"] = {other: number} if size % 2 else number
        elif kind == "extra":
            entries[other or "x"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
            data += b"\0\0\0\0"
        elif kind == "type":
            entries[name] = number
        text = json.dumps(entries).encode()
        if kind == "deep":
            text = b"[" * (size * 200) + text
        return struct.pack("<Q", len(text)) + text + data

    return scheme, change, kind


TORCH_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I32": torch.int32,
    "I64": torch.int64,
}


def read_plainly(path: Path) -> dict[str, Tensor]:
    """A safetensors file as its format says, sharing no code with the loader; only what the model may hold."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in TORCH_DTYPES:
            start, end = entry["data_offsets"]
            values = torch.frombuffer(bytearray(data[start:end]), dtype=TORCH_DTYPES[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def are_same(first: Tensor, second: Tensor) -> bool:
    """Bit for bit, NaN too."""
    return first.shape == second.shape and bool(torch.equal(first.view(torch.uint8), second.view(torch.uint8)))


def any_layer(text: str) -> str:
    """Names without the layers' numbers: transformers names those of several layers in one line, {0, 1}."""
    return re.sub(r"\.(\d+|\{[^}]*\})\.", ".*.", text)


@OPTIONS
@given(mutant=mutated_files(), auto=st.booleans())
def test_a_mutated_safetensors_file_is_read_as_it_says_or_refused(
    root: Path, caplog: pytest.LogCaptureFixture, mutant: tuple[str, Callable[[bytes], bytes], str], auto: bool
) -> None:
    scheme, change, kind = mutant
    folder, what = root / "changed", f"{scheme}, {kind}"
    shutil.copytree(root / scheme, folder, dirs_exist_ok=True)
    (folder / "model.safetensors").write_bytes(change((root / scheme / "model.safetensors").read_bytes()))
    loader = AutoModelForSequenceClassification if auto else PosEncForSequenceClassification
    caplog.clear()
    refused = None
    with pytest.MonkeyPatch.context() as patch:
        for name in ("transformers", "hf_posenc"):
            patch.setattr(logging.getLogger(name), "propagate", True)
        try:
            model, info = loader.from_pretrained(folder, output_loading_info=True)
        except (ValueError, OSError, RuntimeError) as error:
            refused = error
    if refused is not None:
        assert len(str(refused)) > 10, what
        assert not isinstance(refused, RuntimeError) or "ignore_mismatched_sizes" in str(refused), what
        return
    assert kind != "cut", what
    stored, weights = read_plainly(folder / "model.safetensors"), dict(model.named_parameters())
    left = [*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])]
    for name in weights.keys() - set(left):
        assert are_same(weights[name].data, stored[name].to(weights[name].dtype)), (what, name)
    said = [any_layer(line) for line in caplog.messages]
    for name in (*left, *info["unexpected_keys"]):  # what starts anew, and what isn't used, is said
        assert any(any_layer(name) in line for line in said), (what, name)
    with torch.no_grad():
        assert model.eval()(torch.arange(1, 9)[None]).logits.isfinite().all(), what
    model.save_pretrained(root / "again")
    again = PosEncForSequenceClassification.from_pretrained(root / "again", dtype=model.dtype)
    assert all(are_same(weights[name].data, value.data) for name, value in again.named_parameters()), what
