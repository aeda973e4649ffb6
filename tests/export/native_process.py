"""Loads exported folders with transformers alone: `python native_process.py CASES ANSWERS`.

CASES holds, for each folder, the Auto class and the inputs of each batch; ANSWERS gets what the model answers to each,
with the class that was loaded and what the tokenizer makes of the texts.
"""

import sys

import torch
import transformers


def answers(case):
    cls = getattr(transformers, case["auto_class"])
    model, loading = cls.from_pretrained(case["folder"], dtype=torch.float32, output_loading_info=True)
    left_out = {name for names in loading.values() for name in names if "pooler" not in name}
    assert not left_out, left_out
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["folder"])
    with torch.no_grad():
        outputs = [model.eval()(**batch) for batch in case["batches"]]
    names = ("last_hidden_state", "logits", "start_logits", "end_logits")
    return {
        "class": type(model).__name__,
        "outputs": [{name: output[name] for name in names if name in output} for output in outputs],
        "ids": tokenizer(case["texts"])["input_ids"],
        "padding_side": tokenizer.padding_side,
    }


if __name__ == "__main__":
    sys.modules["hf_posenc"] = None  # importing it fails, as where it isn't installed
    torch.save([answers(case) for case in torch.load(sys.argv[1])], sys.argv[2])
