"""An author's process: publishes by the client's own calls, through LFS.

Run as `python author_process.py FOLDER`; the environment says where the Hub is. Writes what the models gave into
`FOLDER/NAME.safetensors`, and the commits into `FOLDER/commits.json`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from remote_code_harness import BATCH, TEXTS, outputs, tiny_config, tiny_model, tiny_tokenizer
from safetensors.torch import save_file

from hf_posenc import PosEncConfig, publish, register_scheme
from hf_posenc.finetuning.train import fine_tune
from hf_posenc.hub import publishing
from hf_posenc.options import Options

HEAD = "PosEncForSequenceClassification"
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_scheme" / "recency.py"


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    register_scheme(EXAMPLE, "recency")
    commits: dict[str, Any] = {}

    def keep(name: str, model: Any) -> None:
        save_file(outputs(model.eval(), BATCH), folder / f"{name}.safetensors")

    constants.HF_HUB_DISABLE_XET = True
    for name, scheme in {"own": "recency", "rope": "rope", "combined": "learned+recency"}.items():
        model = tiny_model(scheme, HEAD)
        keep(f"{name}-1", model)
        tiny_tokenizer().push_to_hub(f"me/{name}")
        commits[f"{name}-1"] = model.push_to_hub(f"me/{name}").oid
        with torch.no_grad():
            model.classifier.out_proj.weight.add_(1)
        keep(f"{name}-2", model)
        commits[f"{name}-2"] = model.push_to_hub(f"me/{name}").oid
    train_and_publish(folder)
    model = tiny_model("t5", HEAD)
    model.push_to_hub("me/pushed")
    model.save_pretrained(folder / "saved")  # so its code lies there already, and is sent all the same
    model.save_pretrained(folder / "saved", push_to_hub=True, repo_id="me/saved")
    tiny_config("recency").save_pretrained(folder / "config")
    tiny_config("recency").save_pretrained(folder / "config", push_to_hub=True, repo_id="me/config")
    PosEncConfig.from_pretrained(folder / "config").push_to_hub("me/config-2")
    (folder / "commits.json").write_text(json.dumps(commits))


def train_and_publish(folder: Path) -> None:
    """The project's training, published; that it loads back, others see to."""
    lines = [json.dumps({"text": text, "label": str(number % 2)}) for number, text in enumerate(TEXTS * 8)]
    (folder / "train.jsonl").write_text("\n".join(lines))
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100}
    data = {"data": str(folder / "train.jsonl"), "validation": str(folder / "train.jsonl")}
    fine_tune(Options(output=str(folder / "trained"), **data, scheme="alibi", max_steps=2, device="cpu", set=sizes))
    publishing.verify_upload = lambda *_: None
    publish(folder / "trained", "me/trained")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
