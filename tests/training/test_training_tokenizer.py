import subprocess
import sys

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from hf_posenc import UserError
from hf_posenc.data.tokenizer import doubts_of_unknown, train_tokenizer
from tests.support.training import ROOT

TEXTS = ["Whose cup does Emily fix?", "the dog chased the cat, naïvely.", "All hills are there existing."] * 5


def test_a_trained_tokenizer_reloads_the_same(tmp_path):
    tokenizer = train_tokenizer(TEXTS, 400, model_max_length=24)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*TEXTS[:3], "unseen words, 漢字 and 🙂"]
    assert again(texts, texts[::-1]) == tokenizer(texts, texts[::-1])
    assert again.model_max_length == 24
    assert again.get_vocab() == tokenizer.get_vocab()
    assert (again.pad_token_id, again.mask_token) == (0, "[MASK]")
    assert sorted(again.all_special_tokens) == ["[CLS]", "[MASK]", "[PAD]", "[SEP]", "[UNK]"]
    assert len(again.added_tokens_decoder) == 5
    assert len(again) <= 400
    cased = train_tokenizer(TEXTS, 400, do_lower_case=False)
    assert cased.convert_ids_to_tokens(cased("naïvely")["input_ids"])[1] == "naïvely"
    assert tokenizer.decode(tokenizer("Emily's dog")["input_ids"], skip_special_tokens=True).startswith("emily")
    pair = tokenizer("the dog", "the cat")
    border = pair["input_ids"].index(tokenizer.sep_token_id) + 1
    assert pair["token_type_ids"] == [0] * border + [1] * (len(pair["input_ids"]) - border)
    with pytest.raises(UserError, match="max_length=2 leaves no room"):
        train_tokenizer(TEXTS, model_max_length=2)
    with pytest.raises(UserError, match="no text to train a tokenizer on"):
        train_tokenizer([])


@pytest.mark.parametrize(("vocabulary", "known"), [(8000, 3000), (4000, 2000), (500, 1000)])
def test_a_language_of_many_characters_keeps_those_that_its_vocabulary_holds(vocabulary, known):
    texts = [chr(0x4E00 + number) * (2 if number < known else 1) for number in range(3000)]
    tokenizer = train_tokenizer(texts, vocabulary)
    encoded = tokenizer(texts)["input_ids"]
    assert [tokenizer.unk_token_id in ids for ids in encoded] == [number >= known for number in range(3000)]
    rows = Dataset.from_dict({"input_ids": encoded})
    lost = 3000 - known
    said = f"{lost / (9000 + known):.1%} of the tokens of the test texts are [UNK]: the tokenizer doesn't know their"
    assert [doubt.startswith(said) for doubt in doubts_of_unknown({"test": rows}, tokenizer)] == [True] * (lost > 0)


NUMBERING = """
import hashlib
from hf_posenc.data.tokenizer import train_tokenizer
texts = [f"word{i} {chr(97 + i % 26) * 3} ba{chr(98 + i % 20)}na" for i in range(300)]
print(hashlib.sha256(train_tokenizer(texts, 500).backend_tokenizer.to_str().encode()).hexdigest())
"""


@pytest.mark.slow  # another process
def test_the_same_text_gives_the_same_tokenizer_in_every_process(capsys):
    """The WordPiece trainer of `tokenizers` numbers pieces by a hash that differs from process to process."""
    exec(NUMBERING, {})
    local_output = capsys.readouterr().out.split()
    words = [sys.executable, "-c", NUMBERING]
    other_process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert other_process.stdout.split()[-1:] == local_output
