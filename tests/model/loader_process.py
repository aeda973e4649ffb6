"""Loads folders in a process of its own whose memory is limited: one JSON order per line, one JSON answer per line."""

import hashlib
import json
import logging
import os
import resource
import shutil
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from hf_posenc import PosEncConfig, PosEncForSequenceClassification

ROOM = 2**30
"""How much a load may allocate, for models of 60 kB."""
DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I32": torch.int32,
    "I64": torch.int64,
}


class Heard(logging.Handler):
    """What transformers warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def read_plainly(path: Path) -> dict[str, Tensor]:
    """A safetensors file as its format says, sharing no code with the loader; only what the model may hold."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in DTYPES:
            start, end = entry["data_offsets"]
            values = torch.frombuffer(bytearray(data[start:end]), dtype=DTYPES[entry["dtype"]])
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().float().contiguous().numpy().tobytes()).hexdigest()


def load(folder: Path, auto: bool) -> dict[str, Any]:
    config = PosEncConfig.from_pretrained(folder)
    cls = AutoModelForSequenceClassification if auto else PosEncForSequenceClassification
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    stored = read_plainly(folder / "model.safetensors")
    weights = dict(model.named_parameters())
    left = [*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])]
    wrong = [
        name
        for name, value in weights.items()
        if name not in left and digest(value) != digest(stored.get(name, value[:0]).to(value.dtype))
    ]
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        logits = model.eval()(ids % model.config.vocab_size, return_dict=True).logits
    again = folder.with_name("again")
    try:
        model.save_pretrained(again)
        read = PosEncForSequenceClassification.from_pretrained(again, dtype=model.dtype)
        kept = {name: digest(value) for name, value in read.named_parameters()}
        same = {name: digest(value) for name, value in weights.items()} == kept
    finally:
        shutil.rmtree(again, ignore_errors=True)
    return {
        "config": config.to_dict(),
        "class": type(model).__name__,
        "left": left,
        "unexpected": list(info["unexpected_keys"]),
        "wrong": wrong,
        "finite": bool(logits.isfinite().all()),
        "labels": logits.shape[-1],
        "saved": same,
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what others print is no answer
    torch.set_num_threads(1)
    torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, 1, 1, 4, 4))  # starts what starts lazily
    heard = Heard()
    for name in ("transformers", "hf_posenc"):
        logging.getLogger(name).addHandler(heard)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for number, line in enumerate(sys.stdin):
        if number == 1:  # the first load has imported and mapped what all need
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
        order = json.loads(line)
        heard.lines.clear()
        start = time.monotonic()
        answer: dict[str, Any]
        try:
            answer = load(Path(order["folder"]), order["auto"])
        except BaseException as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            answer = {"error": kinds, "message": str(error), "traceback": traceback.format_exc()[-3000:]}
        answer |= {"warned": heard.lines, "seconds": time.monotonic() - start}
        print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
