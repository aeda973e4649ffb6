"""sentence-transformers: loads an encoder by its remote code, pools, trains, saves, loads."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from remote_code_harness import TEXTS, clean_environment
from transformers import AutoModel, AutoTokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")

STRANGER = """
import sys
class Hide:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "hf_posenc":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
sys.path[:0] = sys.argv[3].split(":")
import torch
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], trust_remote_code=True, device="cpu")
assert type(model[0].auto_model).__module__.startswith("transformers_modules.")
torch.save(model.encode(%r, convert_to_tensor=True), sys.argv[2])
"""


def load(folder: Path) -> "sentence_transformers.SentenceTransformer":
    model = sentence_transformers.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    model.max_seq_length = 32
    return model


def test_its_embeddings_are_the_mean_of_our_hidden_states_however_it_batches(encoder: Path) -> None:
    model = load(encoder)
    tokenizer, ours = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    expected = []
    for text in TEXTS:
        with torch.no_grad():
            expected.append(ours(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0))
    for batch_size in (1, 2, 32):  # it sorts by length, and pads
        found = model.encode(TEXTS, batch_size=batch_size, convert_to_tensor=True)
        torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_it_trains_saves_and_loads(encoder: Path, tmp_path: Path) -> None:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    try:
        from sentence_transformers.losses import MultipleNegativesRankingLoss
    except ImportError:
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = load(encoder)
    before = model.encode(TEXTS, convert_to_tensor=True)
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to="none"
    )
    data = Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]})
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
    )
    trainer.train()
    model.eval()
    after = model.encode(TEXTS, convert_to_tensor=True)
    assert not torch.allclose(before, after, atol=1e-4)
    model.save_pretrained(str(tmp_path / "saved"))
    torch.testing.assert_close(load(tmp_path / "saved").encode(TEXTS, convert_to_tensor=True), after)


@pytest.mark.slow  # a folder without hf_posenc is loaded by transformers in remote_code/, and by its own code above
def test_strangers_load_what_it_saves(encoder: Path, tmp_path: Path) -> None:
    model = load(encoder)
    expected = model.encode(TEXTS, convert_to_tensor=True)
    model.save_pretrained(str(tmp_path / "saved"))
    extra = str(Path(sentence_transformers.__file__).parents[1])
    words = [sys.executable, "-I", "-c", STRANGER % TEXTS, str(tmp_path / "saved"), str(tmp_path / "found"), extra]
    done = subprocess.run(words, env=clean_environment(tmp_path / "home"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    torch.testing.assert_close(torch.load(tmp_path / "found"), expected, atol=1e-5, rtol=1e-5)
