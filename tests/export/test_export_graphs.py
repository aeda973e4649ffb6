"""Exported graphs give PyTorch's logits: every scheme, every head, other batches and lengths, in a bare process."""

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from common import EVERY_HOOK, EVERY_HOOK_AT_ONCE
from export_harness import batch, checkpoint, expected, tokenizer

from hf_posenc import export
from hf_posenc.checkpoint_files import GRAPHS
from hf_posenc.finetuning.backends import open_backend

SIZES = [((2, 9), False), ((1, 3), False), ((5, 40), True), ((4, 64), False)]
HEADS = {
    "ForSequenceClassification": {"logits": (1, 2)},
    "ForTokenClassification": {"logits": (1, 3, 2)},
    "ForMaskedLM": {"logits": (1, 3, 101)},
    "ForQuestionAnswering": {"start_logits": (1, 3), "end_logits": (1, 3)},
    "Model": {"last_hidden_state": (1, 3, 32)},
}
"""What each gives for a text of three tokens."""
BOTH = ["onnx", "openvino"]


def check_equal(model, folder, to, shapes=SIZES, tolerance=1e-5):
    backend = open_backend(folder, to)
    for shape, left in shapes:
        inputs = batch(*shape, left=left)
        outputs = backend.outputs(inputs)
        for name, values in expected(model, inputs).items():
            of_tokens = values.shape[:2] == shape and len(shape) == 2
            real = inputs["attention_mask"].astype(bool) if of_tokens else ...
            np.testing.assert_allclose(outputs[name][real], values[real], atol=tolerance, rtol=tolerance)


TOGETHER = [EVERY_HOOK_AT_ONCE, "learned+fourier+alibi+toeplitz+kerple", "lspe+fire+mlp_bias+relative_key_query"]
TOGETHER += ["tupe+deberta+test_slope+test_layer_distance", "cable+window"]
"""Combinations, for each export takes seconds; schemes that aren't in one of them are exported alone."""
ALONE = [scheme for scheme in EVERY_HOOK if scheme not in "+".join(TOGETHER).split("+") and "+" not in scheme]
EVERY = [("onnx", scheme) for scheme in (*ALONE, *TOGETHER)]
EVERY += [("openvino", scheme) for scheme in (EVERY_HOOK_AT_ONCE, "deberta", "pope", "cable+window", "dual_triangle")]


@pytest.mark.slow
@pytest.mark.parametrize(("to", "scheme"), EVERY)
def test_every_scheme_runs_as_in_pytorch(to, scheme, tmp_path):
    model = checkpoint(tmp_path / "model", scheme)
    assert export(tmp_path / "model", tmp_path / "out", to).largest_difference < 1e-5
    check_equal(model, tmp_path / "out", to)


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    """Exports a classifier with rotations, once to each: (model, checkpoint's folder, exported folder)."""

    @functools.cache
    def exported(to):
        folder = tmp_path_factory.mktemp(to)
        model = checkpoint(folder / "model")
        assert export(folder / "model", folder / "out", to).largest_difference < 1e-5
        return model, folder / "model", folder / "out"

    return exported


@pytest.mark.slow  # what ONNX Runtime answers, the quick tests of an exported folder see
@pytest.mark.parametrize("to", BOTH)
def test_rotations_run_as_in_pytorch(to, rope):
    model, _, out = rope(to)
    check_equal(model, out, to)


@pytest.mark.slow
def test_a_gated_network_without_biases_runs_as_in_pytorch(tmp_path):
    fields = {"mlp_gated": True, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}
    model = checkpoint(tmp_path / "model", "rope", norm_position="post", **fields)
    assert export(tmp_path / "model", tmp_path / "out", "onnx").largest_difference < 1e-5
    check_equal(model, tmp_path / "out", "onnx")


@pytest.mark.slow
def test_openvino_rotates_q_and_k_of_each_layer_in_one_operation(rope, tmp_path):
    openvino = pytest.importorskip("openvino")
    half = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    model = checkpoint(tmp_path / "model", "rope", rope_parameters=half)
    export(tmp_path / "model", tmp_path / "out", "openvino")
    check_equal(model, tmp_path / "out", "openvino")
    for folder in (rope("openvino")[2], tmp_path / "out"):
        graph = openvino.Core().compile_model(folder / GRAPHS["openvino"], "CPU").get_runtime_model()
        kinds = [node.get_rt_info()["layerType"].astype(str) for node in graph.get_ops()]
        assert kinds.count("RoPE") == 2 * model.config.num_hidden_layers


@pytest.mark.slow
def test_openvino_takes_several_batches_at_once_and_answers_as_one_by_one(rope):
    out = rope("openvino")[2]
    single, many = (open_backend(out, "openvino", throughput=several) for several in (False, True))
    assert single.streams == 1
    if os.cpu_count() > 1:
        assert many.streams > 1
    batches = [batch(3, length) for length in range(2, 40)]
    with ThreadPoolExecutor(many.streams) as pool:
        for together, alone in zip(pool.map(many.logits, batches), map(single.logits, batches), strict=True):
            np.testing.assert_allclose(together, alone, atol=1e-5)


TWO_ENDED = """
import os, signal, sys
from hf_posenc.finetuning.backends import open_backend

first, second = (open_backend(sys.argv[1], "openvino") for _ in range(2))
del first
del second
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_ctrl_c_after_two_openvino_models_have_gone_is_an_interruption(rope):
    done = subprocess.run([sys.executable, "-c", TWO_ENDED, rope("openvino")[2]], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


AT_ONCE = """
import os, signal, sys, threading
import numpy as np, openvino
from hf_posenc.finetuning.backends import open_backend


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
"""


@pytest.mark.slow
def test_the_first_batches_of_a_process_do_not_wait_for_each_other(rope):
    subprocess.run([sys.executable, "-c", AT_ONCE, rope("openvino")[2]], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "to"), [*((head, "onnx") for head in HEADS), ("ForQuestionAnswering", "openvino"), ("Model", "openvino")]
)
def test_every_head_is_exported_with_the_names_that_servers_expect(head, to, tmp_path):
    model = checkpoint(tmp_path / "model", "learned", head)
    export(tmp_path / "model", tmp_path / "out", to)
    outputs = open_backend(tmp_path / "out", to).outputs(batch(1, 3))
    assert {name: value.shape for name, value in outputs.items()} == HEADS[head]
    check_equal(model, tmp_path / "out", to)


@pytest.mark.slow
@pytest.mark.parametrize("to", BOTH)
def test_multiple_choice_takes_any_number_of_choices(to, tmp_path):
    model = checkpoint(tmp_path / "model", "t5", "ForMultipleChoice")
    export(tmp_path / "model", tmp_path / "out", to)
    check_equal(model, tmp_path / "out", to, [((2, 4, 9), False), ((1, 2, 3), False), ((3, 5, 20), True)])


@pytest.mark.slow
def test_a_regression_answers_in_the_units_of_its_data(tmp_path):
    units = {"problem_type": "regression", "num_labels": 1, "label_mean": 1000.0, "label_scale": 200.0}
    model = checkpoint(tmp_path / "model", "rope", **units)
    export(tmp_path / "model", tmp_path / "out", "onnx")
    assert abs(open_backend(tmp_path / "out", "onnx").logits(batch(2, 9)).mean()) > 500
    check_equal(model, tmp_path / "out", "onnx")


@pytest.mark.slow
@pytest.mark.parametrize("to", BOTH)
def test_without_token_types_the_graph_has_no_such_input_and_takes_a_batch_that_has(to, tmp_path):
    model = checkpoint(tmp_path / "model", "alibi", type_vocab_size=0)
    export(tmp_path / "model", tmp_path / "out", to)
    inputs = batch(2, 9)
    logits = open_backend(tmp_path / "out", to).logits(inputs)
    del inputs["token_type_ids"]
    np.testing.assert_allclose(logits, expected(model, inputs)["logits"], atol=1e-5)


@pytest.mark.slow
def test_bfloat16_is_near_float32_and_is_asked_for(rope):
    model, source, out = rope("openvino")
    inputs = batch(4, 40)
    right = expected(model, inputs)["logits"]
    for folder, name in ((source, "torch"), (out, "openvino")):
        exact, rounded = (open_backend(folder, name, bf16=bf16).logits(inputs) for bf16 in (False, True))
        np.testing.assert_allclose(exact, right, atol=1e-5)
        np.testing.assert_allclose(rounded, right, atol=0.1)


BARE = """
import json, sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["hf_posenc"] = None
import numpy as np
from tokenizers import Tokenizer
folder, to, text = sys.argv[1:]
coded = Tokenizer.from_file(f"{folder}/tokenizer.json").encode(text)
feed = {"input_ids": coded.ids, "attention_mask": coded.attention_mask, "token_type_ids": coded.type_ids}
feed = {name: np.array([values]) for name, values in feed.items()}
if to == "onnx":
    import onnxruntime
    session = onnxruntime.InferenceSession(f"{folder}/onnx/model.onnx", providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], feed)[0]
else:
    import openvino
    path, hint = f"{folder}/openvino/openvino_model.xml", {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", hint)
    logits = compiled(feed)["logits"]
print(json.dumps(logits.tolist()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("to", BOTH)
def test_a_process_with_the_runtime_alone_gives_the_same_logits(to, rope, tmp_path):
    model, _, out = rope(to)
    text = "A cat that chased every dog."
    words = [sys.executable, "-c", BARE, str(out), to, text]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    inputs = dict(tokenizer()(text, return_tensors="np"))
    np.testing.assert_allclose(json.loads(done.stdout), expected(model, inputs)["logits"], atol=1e-5)
