"""SetFit: few-shot classification on a PosEnc encoder, trained for a few steps, saved and loaded."""

import numpy as np
import pytest
from datasets import Dataset

# An older setfit, which goes with the lowest evaluate, fails beside transformers 5.
setfit = pytest.importorskip("setfit", exc_type=ImportError)

TEXTS = ["the old cat sees the cat", "a cat bites", "the dog chased that dog", "a big dog bites"]
LABELS = [0, 0, 1, 1]


def test_it_trains_on_an_encoder_saves_and_loads(encoder, tmp_path):
    model = setfit.SetFitModel.from_pretrained(str(encoder), trust_remote_code=True, device="cpu")
    model.model_body.max_seq_length = 32
    before = model.encode(TEXTS)
    arguments = setfit.TrainingArguments(
        output_dir=str(tmp_path / "run"), batch_size=2, max_steps=3, num_epochs=1, report_to="none"
    )
    trainer = setfit.Trainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict({"text": TEXTS, "label": LABELS})
    )
    trainer.train()
    assert not np.allclose(before, model.encode(TEXTS), atol=1e-4)
    assert model.predict(TEXTS).tolist() == LABELS
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = setfit.SetFitModel.from_pretrained(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(loaded.predict_proba(TEXTS), model.predict_proba(TEXTS), atol=1e-5)
