"""examples/serving/server.py on a loopback port, asked by many at once."""

import contextlib
import importlib.util
import json
import re
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hf_posenc
from tests.support.exporting import LABELS, TEXTS, checkpoint, tokenizer

SCRIPT = Path(__file__).parents[2] / "examples" / "serving" / "server.py"
CLIENTS, REQUESTS = 20, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint."""
    folder = tmp_path_factory.mktemp("served") / "model"
    checkpoint(folder, **LABELS)
    return folder


@pytest.fixture(scope="module")
def script():
    """The script as a module, with what it takes from the package."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    spec = importlib.util.spec_from_file_location("server", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def served(script, classifier, windows=None):
    """The server, in a thread of its own, on a free port; it waits long enough for 20 clients."""
    app = script.make_app(classifier, script.Asked(batch_size=16, windows=windows), wait=0.02)
    uvicorn = script.uvicorn
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


def ask(address, body=None):
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    path = "/health" if body is None else "/predict"
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def assert_answers(answers, expected):
    assert [answer["label"] for answer in answers] == [row["label"] for row in expected]
    for answer, row in zip(answers, expected, strict=True):
        assert answer["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)


@pytest.fixture(scope="module")
def classifier(folder, script):
    return script.load_classifier(str(folder))


@pytest.fixture(scope="module")
def address(classifier, script):
    with served(script, classifier) as address:
        yield address


@pytest.fixture(scope="module")
def openvino(folder, script):
    """An export, and its server."""
    pytest.importorskip("openvino")
    hf_posenc.export(folder, folder.with_name("out"), to="openvino")
    classifier = script.load_classifier(str(folder.with_name("out")))
    with served(script, classifier) as address:
        yield classifier, address


@pytest.mark.slow
def test_twenty_clients_at_once_get_their_own_answers_from_shared_batches(openvino, script):
    classifier, address = openvino
    words = [word for word in tokenizer().get_vocab() if word.isalpha()]

    def texts_of(client, number):
        start = 7 * client + number
        sizes = (1, 9, 4)[: 1 + client % 3]
        return [" ".join(words[(start + place) % len(words)] for place in range(size)) for size in sizes]

    def client(name):
        return [ask(address, {"inputs": texts_of(name, number)}) for number in range(REQUESTS)]

    before = ask(address)[1]
    with ThreadPoolExecutor(CLIENTS) as pool:
        replies = list(pool.map(client, range(CLIENTS), timeout=60))
    count = 0
    for name, own in enumerate(replies):
        for number, (status, reply) in enumerate(own):
            texts = texts_of(name, number)
            assert status == 200
            assert_answers(reply["answers"], list(script.answers_to(classifier, [(text,) for text in texts])))
            count += len(texts)
    after = ask(address)[1]
    assert after["backend"] == "openvino"
    assert after["texts"] - before["texts"] == count
    batches = after["batches"] - before["batches"]
    assert count / 16 <= batches < CLIENTS * REQUESTS / 2  # full ones, and fewer than requests


def test_joined_columns_are_joined_as_in_training_and_cut_texts_are_marked(folder, script, tmp_path):
    rows = "".join(f"old {row},cat {row},{'no yes'.split()[row % 2]}\n" for row in range(20))
    (tmp_path / "mine.csv").write_text(f"subject,body,label\n{rows}")
    columns = {"text_column": "subject,body", "join": " ", "label_column": "label"}
    quick = {"max_steps": 1, "validation_share": 0, "device": "cpu", "baselines": False, "verbose": 0}
    hf_posenc.train(tmp_path / "mine.csv", tmp_path / "run", pretrained=folder, **columns, **quick)
    classifier = script.load_classifier(str(tmp_path / "run"))
    joined = f"{TEXTS[0]} {TEXTS[1]}"
    with served(script, classifier) as address:
        inputs = [{"subject": TEXTS[0], "body": TEXTS[1]}, [TEXTS[0], TEXTS[1]], joined, "old " * 5000]
        status, reply = ask(address, {"inputs": inputs})
        assert status == 200
        expected = list(script.answers_to(classifier, [(joined,)] * 3 + [("old " * 5000,)]))
        assert_answers(reply["answers"], expected)
        assert reply["truncated"] == [False, False, False, True]
        status, reply = ask(address, {"inputs": [joined, {"title": "a"}]})
        said = "Text 1: The text has no 'subject', but title. The model takes subject, body."
        assert (status, reply["error"]) == (422, said)


def test_a_long_text_is_read_in_windows_beside_others(classifier, script):
    windows, long = script.Windows("mean"), {}
    texts = [TEXTS[0], "old " * 5000, TEXTS[1]]
    expected = list(
        script.answers_to(classifier, [(text,) for text in texts], script.Asked(windows=windows), long=long)
    )
    with served(script, classifier, windows) as address:
        status, reply = ask(address, {"inputs": texts})
    assert status == 200
    assert_answers(reply["answers"], expected)
    assert (reply["truncated"], reply["windows"]) == ([False] * 3, [1, long[1], 1])


def test_a_text_that_no_window_holds_is_named_by_its_number_in_the_request(classifier, script):
    inputs = [TEXTS[0], [TEXTS[0], "cat"], ["old " * 5000, "cat"], ["old " * 6000, "cat"]]
    with served(script, classifier, script.Windows("mean")) as address:
        status, reply = ask(address, {"inputs": inputs})
    assert status == 422
    assert re.match("Text 2: '.*'..., of 5,.* tokens, can't be read in windows of ", reply["error"])


def test_empty_texts_are_answered_marked_and_counted(address):
    before = ask(address)[1]["empty"]
    status, reply = ask(address, {"inputs": [TEXTS[0], "", " \t", [TEXTS[0], ""], [TEXTS[0], TEXTS[1]]]})
    assert (status, len(reply["answers"])) == (200, 5)
    assert reply["empty"] == [False, True, True, True, False]
    assert ask(address)[1]["empty"] == before + 3


def test_pairs_stand_beside_texts_and_a_long_request_takes_several_batches(classifier, address, script):
    inputs = [TEXTS[0], [TEXTS[0], TEXTS[1]], *TEXTS * 20]
    status, reply = ask(address, {"inputs": inputs})
    assert status == 200
    expected = [(item,) if isinstance(item, str) else tuple(item) for item in inputs]
    assert_answers(reply["answers"], list(script.answers_to(classifier, expected)))


def test_a_request_that_is_none_gets_a_sentence(address):
    wrong = [[], "a text", [1], [["a", "b", "c"]], ["a"] * 1001]
    for body in ({}, b"{", *({"inputs": inputs} for inputs in wrong)):
        status, reply = ask(address, body)
        assert status == 422
        assert reply["error"].startswith('Send {"inputs": [...]} with 1 to 1000 texts, or pairs of texts')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inputs": ["a cat"], "threshold": 0.2}, "'threshold' is unknown."),
        ({"inputs": ["a cat"], "windows": "mean"}, "'windows' is unknown."),
        (b'{"inputs": ["caf\xe9"]}', "The body is no JSON in UTF-8."),
    ],
)
def test_a_request_with_something_else_is_told_what_and_what_to_send(address, body, said):
    status, reply = ask(address, body)
    assert status == 422
    assert reply["error"].startswith(f'{said} Send {{"inputs": [...]}} with 1 to 1000 texts')


def test_half_a_character_is_refused(address):
    status, reply = ask(address, {"inputs": ["a cat", "\ud800"]})
    assert status == 422
    assert "Text 1 holds '\\ud800', one half of a surrogate pair" in reply["error"]


def test_one_text_that_cannot_be_answered_spoils_no_other(classifier, address, script):
    vocabulary = tokenizer().get_vocab()
    word, bad = next((word, number) for word, number in vocabulary.items() if number > 4 and word.isalpha())

    def spoil(model, _, batch, output):
        output.logits[(batch["input_ids"] == bad).any(-1)] = np.nan

    with ThreadPoolExecutor(3) as pool, classifier.model.register_forward_hook(spoil, with_kwargs=True):
        replies = list(pool.map(lambda text: ask(address, {"inputs": [text]}), ["zzz", word, "zzz zzz"]))
    assert [status for status, _ in replies] == [200, 422, 200]
    assert re.match("Text 0: .*NaN", replies[1][1]["error"])
    assert_answers(replies[0][1]["answers"], list(script.answers_to(classifier, [("zzz",)])))
