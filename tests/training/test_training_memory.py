"""The memory of a training step: the formula, against a process's own; what is said where it isn't free."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from transformers import TrainingArguments

from hf_posenc import PosEncConfig, PosEncForSequenceClassification, UserError
from hf_posenc.machine import step_bytes
from hf_posenc.training import recipe as memory

pytestmark = pytest.mark.usefixtures("spelt_by_train")

SIZES = {"vocab_size": 1000, "hidden_size": 384, "num_hidden_layers": 3, "num_attention_heads": 12}
SIZES |= {"intermediate_size": 1536, "max_position_embeddings": 2048, "hidden_dropout_prob": 0.1}
STEPS = """
import os, re, sys, torch
from hf_posenc import PosEncConfig, PosEncForSequenceClassification

def peak():  # not getrusage: its peak begins at that of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

def step(length, texts, dropout, scheme):
    before = peak()
    config = PosEncConfig(**sizes, attention_probs_dropout_prob=dropout, position_embedding_type=scheme)
    model = PosEncForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(), optimizer.zero_grad()  # its moments are there, as after a first step
    ids = torch.randint(5, 900, (texts, length))
    model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=torch.zeros(texts).long()).loss.backward()
    optimizer.step()
    print(1024 * (peak() - before), flush=True)

sizes, cases = map(eval, sys.argv[1:])
for case in cases:
    child = os.fork()  # whose peak begins at what this process holds
    if child == 0:
        step(*case)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
CASES = [(128, 32, 0.0, "rope"), (512, 8, 0.0, "rope"), (1500, 3, 0.0, "rope"), (512, 4, 0.1, "rope")]
CASES += [(1024, 2, 0.0, scheme) for scheme in ("alibi", "t5", "cable")]
"""Length, texts, dropout of attention, scheme: with a bias for all layers, or by layer."""


@pytest.fixture(scope="module")
def taken():
    """The bytes that a step of each case takes."""
    words = [sys.executable, "-c", STEPS, repr(SIZES), repr(CASES)]
    printed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(zip(CASES, map(int, printed.split()), strict=True))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("case", CASES)
def test_the_formula_is_within_30_percent_of_what_a_step_takes(case, taken):
    length, texts, dropout, scheme = case
    config = PosEncConfig(**SIZES, attention_probs_dropout_prob=dropout, position_embedding_type=scheme)
    model = PosEncForSequenceClassification(config)
    assert sum(step_bytes(model, [length] * texts)) == pytest.approx(taken[case], rel=0.3)


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Looks at steps of 32 texts of 100 tokens, where they take so many times what is free; checks what is proposed."""
    model = PosEncForSequenceClassification(PosEncConfig(**SIZES))
    arguments = TrainingArguments(str(tmp_path), per_device_train_batch_size=32, use_cpu=True)

    def run(times: float, chosen: bool = False) -> str:
        free = int(sum(step_bytes(model, [100] * 32)) / times)
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
        said = " ".join(memory.check_memory(model, [10] * 500 + [100] * 32, arguments, chosen=chosen))
        if "--batch-size" in said:
            size, steps = map(
                int, re.findall(r"--batch-size (\d+) with --set gradient_accumulation_steps=(\d+)", said)[0]
            )
            fits, more = (sum(step_bytes(model, [100] * texts)) for texts in (size, size + 1))
            assert fits <= free < more
            assert size * (steps - 1) < 32 <= size * steps
        return said

    return run


def test_what_a_step_takes_is_said_and_a_batch_size_that_fits_where_it_may_not(check):
    assert re.fullmatch(r"A step has up to 3,200 tokens, which take about [\d.]+MB; [\d.]+MB are free\.", check(0.9))
    assert "That may not fit." in check(1.15)
    assert "That may not fit." in check(2.0, chosen=True)
    with pytest.raises(UserError, match=r"--batch-size \d+ .* --batch-size 32 tries it\."):
        check(2.0)
