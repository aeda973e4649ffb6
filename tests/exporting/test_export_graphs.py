"""Exported graphs give PyTorch's logits: every scheme, every head, other batches and lengths."""

import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hf_posenc
from hf_posenc import export
from hf_posenc.inference.backends import open_backend
from tests.support.common import EVERY_HOOK, EVERY_HOOK_AT_ONCE
from tests.support.exporting import batch, checkpoint, expected

SIZES = [((2, 9), False), ((1, 3), False), ((5, 40), True), ((4, 64), False)]
OF_CHOICES = [((2, 4, 9), False), ((1, 2, 3), False), ((3, 5, 20), True)]
HEADS = {
    "ForSequenceClassification": {"logits": (1, 2)},
    "ForTokenClassification": {"logits": (1, 3, 2)},
    "ForMaskedLM": {"logits": (1, 3, 101)},
    "ForQuestionAnswering": {"start_logits": (1, 3), "end_logits": (1, 3)},
    "ForMultipleChoice": {"logits": (1, 4)},
    "Model": {"last_hidden_state": (1, 3, 32)},
}
"""What each gives for a text of three tokens, or for four choices of three."""
GATED = {"mlp_gated": True, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "norm_position": "post"}
NARROW = {"position_embedding_kwargs": {"window": {"sliding_window": 2}}}
PRICES = {"problem_type": "regression", "num_labels": 1, "label_mean": 1000.0, "label_scale": 200.0}
ONE_TYPE = {"type_vocab_size": 0}
MODERN = {"norm_position": "pre_only", "norm_type": "rms_norm", "token_dropout": 7}
CASES = {
    f"{to}-{scheme}{'-dynamic' * ('rope_parameters' in fields)}": (to, scheme, head, fields)
    for to, scheme, head, fields in (
        ("onnx", EVERY_HOOK_AT_ONCE, "ForSequenceClassification", GATED),
        ("onnx", "learned+fourier+alibi+toeplitz+kerple", "ForTokenClassification", {}),
        ("onnx", "lspe+fire+mlp_bias+relative_key_query+pope", "ForMaskedLM", {}),
        ("onnx", "tupe+deberta+test_slope+test_layer_distance", "Model", {}),
        ("onnx", "cable+window+dual_triangle", "ForMultipleChoice", NARROW),
        ("onnx", "none", "ForSequenceClassification", {**PRICES, **ONE_TYPE, **MODERN}),
        ("openvino", "rope", "ForSequenceClassification", {}),
        ("openvino", "rope", "ForMaskedLM", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
        ("openvino", f"{EVERY_HOOK_AT_ONCE}+deberta", "ForQuestionAnswering", MODERN),
        ("openvino", "cable+window+dual_triangle+pope", "ForMultipleChoice", {**NARROW, **ONE_TYPE}),
    )
}
"""Together every scheme, head and kind of field, for each export takes seconds."""


def check_equal(model, backend, shapes=SIZES, tolerance=1e-5):
    for shape, left in shapes:
        inputs = batch(*shape, left=left)
        outputs = backend.outputs(inputs)
        if model.config.type_vocab_size == 0:  # a graph without this input takes a batch that has it
            del inputs["token_type_ids"]
        for name, values in expected(model, inputs).items():
            of_tokens = values.shape[:2] == shape and len(shape) == 2
            real = inputs["attention_mask"].astype(bool) if of_tokens else ...
            np.testing.assert_allclose(outputs[name][real], values[real], atol=tolerance, rtol=tolerance)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports a case, once: (model, checkpoint's folder, exported folder)."""

    @functools.cache
    def export_case(case):
        to, scheme, head, fields = CASES[case]
        folder = tmp_path_factory.mktemp("case")
        model = checkpoint(folder / "model", scheme, head, **fields)
        assert export(folder / "model", folder / "out", to=to).largest_difference < 1e-5
        return model, folder / "model", folder / "out"

    return export_case


@pytest.fixture
def rope(exported):
    """A classifier with rotations for OpenVINO."""
    return exported("openvino-rope")


def test_no_scheme_and_no_head_is_missing():
    every = set("+".join(EVERY_HOOK).split("+"))
    assert {name for to, scheme, *_ in CASES.values() if to == "onnx" for name in scheme.split("+")} == every
    assert {head for _, _, head, _ in CASES.values()} == HEADS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_scheme_and_head_runs_as_in_pytorch_under_the_names_that_servers_expect(case, exported):
    to, _, head, fields = CASES[case]
    model, _, out = exported(case)
    choices = head == "ForMultipleChoice"
    backend = open_backend(out, to)  # once: OpenVINO compiles it
    outputs = backend.outputs(batch(*(1, 4, 3) if choices else (1, 3)))
    shapes = {"logits": (1, 1)} if "num_labels" in fields else HEADS[head]
    assert {name: value.shape for name, value in outputs.items()} == shapes
    if "label_mean" in fields:  # in the units of its data
        assert abs(outputs["logits"].mean()) > 500
    check_equal(model, backend, OF_CHOICES if choices else SIZES)


@pytest.mark.slow
def test_openvino_rotates_q_and_k_of_each_layer_in_one_operation(rope, tmp_path):
    openvino = pytest.importorskip("openvino")
    half = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    model = checkpoint(tmp_path / "model", "rope", "Model", rope_parameters=half)
    export(tmp_path / "model", tmp_path / "out", to="openvino")
    check_equal(model, open_backend(tmp_path / "out", "openvino"))
    for folder in (rope[2], tmp_path / "out"):
        graph = openvino.Core().compile_model(folder / "openvino/openvino_model.xml", "CPU").get_runtime_model()
        kinds = [node.get_rt_info()["layerType"].astype(str) for node in graph.get_ops()]
        assert kinds.count("RoPE") == 2 * model.config.num_hidden_layers


@pytest.mark.slow
def test_openvino_takes_several_batches_at_once_and_answers_as_one_by_one(rope):
    out = rope[2]
    single, many = (open_backend(out, "openvino", throughput=several) for several in (False, True))
    assert single.streams == 1
    if os.cpu_count() > 1:
        assert many.streams > 1
    batches = [batch(3, length) for length in range(2, 40)]
    with ThreadPoolExecutor(many.streams) as pool:
        for together, alone in zip(pool.map(many.logits, batches), map(single.logits, batches), strict=True):
            np.testing.assert_allclose(together, alone, atol=1e-5)


IN_A_PROCESS = """
import os, signal, sys, threading
import numpy as np, openvino
from hf_posenc.inference.backends import open_backend


def answer():
    ready.wait()
    backend.logits({"input_ids": np.ones((2, 3), int), "attention_mask": np.ones((2, 3), int)})


for _ in range(12):  # without the remedy one in four waits forever
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it
        backend, ready = open_backend(sys.argv[1], "openvino", throughput=True), threading.Barrier(4)
        threads = [threading.Thread(target=answer) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
first, second = (open_backend(sys.argv[1], "openvino") for _ in range(2))
del first
del second
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_the_first_batches_wait_not_for_each_other_and_ctrl_c_after_two_openvino_models_is_an_interruption(rope):
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS, rope[2]], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


@pytest.mark.slow
def test_bfloat16_is_near_float32_and_is_asked_for(rope):
    model, _, out = rope
    inputs = batch(4, 40)
    right = expected(model, inputs)["logits"]
    exact, rounded = (open_backend(out, "openvino", bf16=bf16).logits(inputs) for bf16 in (False, True))
    np.testing.assert_allclose(exact, right, atol=1e-5)
    np.testing.assert_allclose(rounded, right, atol=0.1)


@pytest.mark.slow
def test_the_loss_of_a_regression_is_in_the_same_units_after_an_export(tmp_path):
    checkpoint(tmp_path / "model", "rope", **PRICES)
    export(tmp_path / "model", tmp_path / "out", to="onnx")
    (tmp_path / "data.csv").write_text("text,label\na cat,900\nevery dog,1200\na dog,1100\n")
    was, now = (hf_posenc.evaluate(tmp_path / name, tmp_path / "data.csv") for name in ("model", "out"))
    assert now["loss"] == pytest.approx(was["loss"], rel=1e-5)
    assert now["mse"] == pytest.approx(was["mse"], rel=1e-5)
