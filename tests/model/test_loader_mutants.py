"""250 damaged files of weights: each loads as it says or is refused in words; none crashes, hangs or grows."""

import json
import os
import re
import selectors
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from remote_code_harness import tiny_model

EXAMPLES = int(os.environ.get("HF_POSENC_MUTANTS", "250"))
SCHEMES = ("none", "learned", "lspe", "rope", "t5", "fire", "deberta", "tupe+t5")
pytestmark = pytest.mark.slow
OPTIONS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
REFUSALS = {"ValueError", "OSError"}
"""What a caller may catch: a ValueError is ours, an OSError is transformers'."""


class Loader:
    """A process that loads folders (see loader_process.py), started anew if it dies or hangs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = {scheme: root / scheme for scheme in SCHEMES}
        for scheme, folder in self.folders.items():
            tiny_model(scheme, "PosEncForSequenceClassification").save_pretrained(folder)
            for code in folder.glob("*.py"):  # the classes here are used
                code.unlink()
        self.process: subprocess.Popen[str] | None = None

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("loader_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        self.process = process
        assert self._read(120) == {"ready": True}
        first = self.ask(self.folders["rope"], auto=True)
        assert first["class"] == "PosEncForSequenceClassification"
        assert not first["wrong"]
        return process

    def _read(self, seconds: float) -> Any:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self.stop()
                raise AssertionError(f"Loading hangs: no answer in {seconds} s.")
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.process = None
            raise AssertionError(f"Loading ended the process with {code}.")
        return json.loads(line)

    def ask(self, folder: Path, auto: bool) -> dict[str, Any]:
        process = self.process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"folder": str(folder), "auto": auto}) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = self._read(20)
        return answer

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    process = Loader(tmp_path_factory.mktemp("mutants"))
    yield process
    process.stop()


def check_refusal(answer: dict[str, Any], what: str) -> None:
    """An error that a caller can catch, with a message."""
    kinds = set(answer["error"])
    mismatch = "RuntimeError" in kinds and "ignore_mismatched_sizes" in answer["message"]
    assert kinds & REFUSALS or mismatch, f"{what}\n{answer['traceback']}"
    assert len(answer["message"]) > 10, what


def any_layer(text: str) -> str:
    """Names without the layers' numbers: transformers names those of several layers in one line, {0, 1}."""
    return re.sub(r"\.(\d+|\{[^}]*\})\.", ".*.", text)


def check_use(answer: dict[str, Any], what: str) -> None:
    """What was loaded has the file's weights, classifies as it says, and is the same again after it is saved."""
    assert answer["class"] == "PosEncForSequenceClassification", what
    assert not answer["wrong"], what
    assert answer["finite"], what
    said = [any_layer(line) for line in answer["warned"]]
    assert all(any(any_layer(name) in line for line in said) for name in answer["unexpected"]), what
    assert answer["labels"] == len(answer["config"].get("id2label") or "ab"), what
    assert answer["saved"], what


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


@pytest.mark.promise("Bounds", "A damaged safetensors file is read as its header says, or refused")
@OPTIONS
@given(mutant=mutated_files(), auto=st.booleans())
def test_a_mutated_safetensors_file_is_read_as_it_says_or_refused(
    loader: Loader, mutant: tuple[str, Callable[[bytes], bytes], str], auto: bool
) -> None:
    scheme, change, kind = mutant
    source, folder = loader.folders[scheme], loader.root / "weights"
    content = (source / "model.safetensors").read_bytes()
    shutil.copytree(source, folder, dirs_exist_ok=True)
    (folder / "model.safetensors").write_bytes(change(content))
    answer = loader.ask(folder, auto)
    what = f"{scheme}, {kind}: {str(answer)[:3000]}"
    if "error" in answer:
        check_refusal(answer, what)
        return
    check_use(answer, what)
    if answer["left"]:  # weights that the file doesn't have start anew, and that is said
        assert any(name in line for name in answer["left"] for line in answer["warned"]), what
    assert kind != "cut", what
