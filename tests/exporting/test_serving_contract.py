"""Text Embeddings Inference (TEI) on a CPU, as the source of 1.9.3 reads a folder, without TEI, which can't run here.

It parses config.json and the files of sentence-transformers with the types below, takes tokenizer.json with truncation
at the longest input and without padding, pads batches itself, and feeds ONNX Runtime what the graph asks for. A
classifier's logits go through a softmax, or a sigmoid where there is one; embeddings are pooled from the hidden states.
"""

import json

import numpy as np
import pytest
import torch

import hf_posenc
from tests.support.common import others_slow
from tests.support.exporting import LABELS, SENTENCES, TEXTS, checkpoint, mean_vectors, tokenizer

LONG = " ".join(TEXTS * 20)


class Server:
    """A folder, opened and asked as TEI does."""

    def __init__(self, folder):
        import onnxruntime
        from tokenizers import Tokenizer

        config = json.loads((folder / "config.json").read_text())
        assert isinstance(config["model_type"], str)
        assert isinstance(config["hidden_size"], int)
        assert isinstance(config["num_hidden_layers"], int)
        self.is_classifier = any(name.endswith("Classification") for name in config["architectures"])
        if self.is_classifier:
            self.names = config["id2label"]
            assert all(isinstance(number, int) for number in config["label2id"].values())
        else:
            pooling = json.loads((folder / "1_Pooling/config.json").read_text())
            first, mean = pooling["pooling_mode_cls_token"], pooling["pooling_mode_mean_tokens"]  # both are required
            assert first or mean or pooling["pooling_mode_lasttoken"]
            self.pooling = "cls" if first else "mean" if mean else "last"
        longest = config["max_position_embeddings"]
        sentence_config = folder / "sentence_bert_config.json"
        if sentence_config.exists():
            longest = json.loads(sentence_config.read_text())["max_seq_length"]  # required
        assert isinstance(longest, int)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(longest)
        padding_side = json.loads((folder / "tokenizer_config.json").read_text()).get("padding_side", "right")
        assert padding_side in ("left", "right")
        self.pads_left = padding_side == "left"
        self.pad = config.get("pad_token_id") or 0
        path = folder / "model.onnx"
        self.session = onnxruntime.InferenceSession(path if path.exists() else folder / "onnx/model.onnx")

    def outputs(self, texts):
        """What the graph gives for a padded batch, and its mask."""
        rows = [self.tokenizer.encode(text) for text in texts]
        longest = max(len(row.ids) for row in rows)
        columns = {"input_ids": [], "attention_mask": [], "token_type_ids": [], "position_ids": []}
        for row in rows:
            size, rest = len(row.ids), longest - len(row.ids)
            own = (row.ids, [1] * size, row.type_ids, list(range(size)))
            for (name, values), part in zip(columns.items(), own, strict=True):
                padding = [self.pad if name == "input_ids" else 0] * rest
                values.append(padding + part if self.pads_left else part + padding)
        feed = {item.name: np.array(columns[item.name], np.int64) for item in self.session.get_inputs()}
        names = [item.name for item in self.session.get_outputs()]
        assert {"input_ids", "attention_mask"} <= feed.keys()
        assert "position_ids" not in feed  # on the left it would count the padding
        results = dict(zip(names, self.session.run(names, feed), strict=True))
        assert all(value.dtype == np.float32 for value in results.values())
        return results, np.array(columns["attention_mask"])

    def predict(self, texts, raw_scores=False):
        """Scores by label, one dictionary a text."""
        logits = self.outputs(texts)[0]["logits"].astype(np.float64)
        if not raw_scores:
            powers = np.exp(logits - logits.max(-1, keepdims=True))
            logits = powers / powers.sum(-1, keepdims=True) if logits.shape[-1] > 1 else 1 / (1 + np.exp(-logits))
        return [{self.names[str(n)]: value for n, value in enumerate(row)} for row in logits]

    def embed(self, texts):
        """Embeddings before they are normalised."""
        results, mask = self.outputs(texts)
        states = results["last_hidden_state"]
        if self.pooling == "cls":
            return states[np.arange(len(texts)), mask.argmax(-1)]
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


@pytest.fixture
def export(tmp_path):
    """Writes a checkpoint and exports it; returns the model and the folder."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name)

    def call(*arguments, padding_side="right", change=None, **fields):
        model = checkpoint(tmp_path / "model", *arguments, **fields)
        tokenizer(padding_side=padding_side).save_pretrained(tmp_path / "model")
        if change is not None:
            change(tmp_path / "model")
        hf_posenc.export(tmp_path / "model", tmp_path / "out", to="onnx")
        return model, tmp_path / "out"

    return call


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "side"), others_slow([("rope", "right"), ("learned", "left")], ("learned", "left")))
def test_a_classifier_gives_the_probabilities_of_predict(export, tmp_path, scheme, side):
    _, out = export(scheme, padding_side=side, **LABELS)
    texts = [*TEXTS, LONG]
    model = hf_posenc.load(tmp_path / "model")
    for scores, row in zip(Server(out).predict(texts), model.predict_proba(texts), strict=True):
        assert scores == pytest.approx(dict(zip(model.classes_, row, strict=True)), abs=1e-5)


@pytest.mark.slow
def test_a_regression_answers_in_its_units_where_raw_scores_are_asked_for(export, tmp_path):
    fields = {"num_labels": 1, "problem_type": "regression", "label_mean": 40.0, "label_scale": 9.0}
    _, out = export(**fields)
    scores = [next(iter(scores.values())) for scores in Server(out).predict(TEXTS, raw_scores=True)]
    assert scores == pytest.approx(hf_posenc.load(tmp_path / "model").predict(TEXTS), abs=1e-3)


@pytest.mark.slow
def test_a_bare_encoder_gives_the_mean_of_its_token_vectors(export):
    model, out = export("rope", "Model")
    np.testing.assert_allclose(Server(out).embed(TEXTS), mean_vectors(model), atol=1e-5)


def as_sentence_transformer(folder):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    tokenizer(model_max_length=40).save_pretrained(folder)
    encoder = Transformer(str(folder))
    SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), "cls")]).save(str(folder))


@pytest.mark.slow
def test_a_sentence_transformer_of_today_is_read_with_its_pooling(export):
    from sentence_transformers import SentenceTransformer

    pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    model, out = export("rope", "Model", change=as_sentence_transformer)
    server = Server(out)
    assert server.pooling == "cls"
    texts = [*TEXTS, LONG]  # cut where the tokenizer says, before the model's end
    rows = [tokenizer(model_max_length=40)(text, truncation=True, return_tensors="pt") for text in texts]
    with torch.no_grad():
        firsts = [model(**row).last_hidden_state[0, 0].numpy() for row in rows]
    np.testing.assert_allclose(server.embed(texts), firsts, atol=1e-5)
    embedder = SentenceTransformer(str(out.with_name("model")), trust_remote_code=True)
    np.testing.assert_allclose(embedder.encode(texts), firsts, atol=1e-5)


@pytest.mark.parametrize("limit", [9, 200])
def test_a_server_cuts_where_the_checkpoint_is_cut(limit, tmp_path):
    checkpoint(tmp_path / "model", "rope", **LABELS)  # config.json says 64
    tokenizer(model_max_length=limit).save_pretrained(tmp_path / "model")
    hf_posenc.export(tmp_path / "model", tmp_path / "out", to="onnx")
    text = " ".join(SENTENCES[:12])
    (scores,) = Server(tmp_path / "out").predict([text])
    (own,) = hf_posenc.load(tmp_path / "model").predict_proba([text])
    assert [scores[name] for name in ("no", "maybe", "yes")] == pytest.approx(own, abs=1e-5)
