"""Tiny random checkpoints of every family that can be converted, and a tokenizer for them."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load, save_file
from transformers import BertTokenizer

from hf_posenc import convert
from hf_posenc.checkpoints.loading import load_any
from hf_posenc.checkpoints.opening import open_checkpoint
from hf_posenc.conversion.families import FAMILIES
from hf_posenc.exporting.native import to_native
from tests.support.common import padded, perturb, word_tokenizer

SIZES = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
MODERNBERT_IDS = {"pad_token_id": 0, **dict.fromkeys(f"{name}_token_id" for name in ("bos", "eos", "cls", "sep"))}
DISENTANGLED = {
    "deberta-v2": {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    "deberta": {},
}
for fields in DISENTANGLED.values():
    fields |= {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
CASES = [
    (family, task)
    for family in FAMILIES
    if family in transformers.CONFIG_MAPPING
    for task in ("feature-extraction", *FAMILIES[family].heads)
]
WORDS = "the a dog cat bird chased saw likes that who every no some big small red walks sleeps".split()


def published(name: str) -> dict:
    """config.json of a published checkpoint."""
    return json.loads((Path(__file__).parents[1] / "conversion" / "published" / f"{name}.json").read_text())


def tiny_source(folder: Path, family: str = "bert", task: str = "feature-extraction", **changes):
    """Writes a random checkpoint of a family, and returns its model."""
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    values = {FAMILIES[family].fields.get(name, name): value for name, value in SIZES.items()}
    if family == "gte":
        values["pad_token_id"] = 1
    if family == "esm":
        values |= {"pad_token_id": 1, "max_position_embeddings": 42, "position_embedding_type": "rotary"}
        values |= {"token_dropout": True, "mask_token_id": 31, "emb_layer_norm_before": False}
    if family == "eurobert":
        values |= {"pad_token_id": 1, "classifier_pooling": "bos"}
    if family == "modernbert":
        values |= {"local_attention": 6, **MODERNBERT_IDS}
        values |= {"classifier_activation": "silu"} if task in ("text-classification", "multiple-choice") else {}
    if family in ("roberta", "xlm-roberta", "camembert", "mpnet", "jina_embeddings_v3"):
        values |= {"pad_token_id": 1, "max_position_embeddings": 42}
        values |= {} if family == "mpnet" else {"type_vocab_size": 1}
    if family in DISENTANGLED:
        values |= DISENTANGLED[family]
    if family in ("electra", "roformer"):
        values["embedding_size"] = 20
    if family == "roformer" and task == "multiple-choice":  # which takes the last token by default
        values |= {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
    if task in ("text-classification", "token-classification"):
        values |= {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
    config = transformers.CONFIG_MAPPING[family](**{**values, **changes})
    torch.manual_seed(3)
    model = FAMILIES[family].model_class(task)(config)
    model = perturb(model, 0.1).eval()
    if family == "roformer":  # its sines aren't weights: perturbed, they would be another model's
        table = model.base_model.encoder.embed_positions
        table.weight.data = table.create_weight()
    if family == "esm":  # a native export has zeros there
        unused = [*model.base_model.contact_head.parameters()]
        if config.position_embedding_type == "absolute":
            unused.append(model.base_model.embeddings.position_embeddings.weight[:2])
        for part in unused:
            part.data.zero_()
    model.save_pretrained(folder)
    return model


def published_gte(folder: Path, task: str, factor: float | None):
    """Writes a random GTE as it was published, for code of its own, and returns the model of transformers' class."""
    model = tiny_source(folder, "gte", task, pad_token_id=0, type_vocab_size=0)
    # transformers writes the old names, but for the prefix.
    edit_weights(folder, lambda state: {re.sub("^gte", "new", key): value for key, value in state.items()})
    scaling = None if factor is None else {"type": "ntk", "factor": factor}
    head = type(model).__name__.replace("Gte", "New")
    labels = {name: getattr(model.config, name) for name in ("id2label", "label2id")}
    changes = {"architectures": [head], "rope_scaling": scaling, **labels}
    (folder / "config.json").write_text(json.dumps({**GTE, **GTE_SIZES, **changes}))
    tiny_tokenizer(folder)
    return model


def converted(*arguments, **options):
    """The model and the report of a conversion."""
    done = convert(*arguments, **options)
    return done.model, done.report


def edit(source: Path, **changes):
    """Changes fields of a checkpoint's config.json."""
    path = source / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(source: Path, change):
    """Changes a checkpoint's weights, in place or to those that `change` returns."""
    state = load((source / "model.safetensors").read_bytes())
    changed = change(state)
    save_file(changed if isinstance(changed, dict) else state, source / "model.safetensors", {"format": "pt"})


def exported(folder: Path, like: str | None = None):
    """The checkpoint in a folder as a model of transformers' own."""
    opened = open_checkpoint(folder)
    return to_native(load_any(opened), like, opened.dtype)[0]


def tiny_tokenizer(folder: Path, **options) -> BertTokenizer:
    """A word tokenizer with [CLS] and [SEP], saved into a folder."""
    tokenizer = word_tokenizer(WORDS, **{"model_max_length": 40, **options})
    tokenizer.save_pretrained(folder)
    return tokenizer


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 12, (count,), generator=draw).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=draw).tolist()) for n in lengths]


ROWS = [torch.randint(5, 101, (n,), generator=torch.Generator().manual_seed(n)) for n in (20, 7, 1, 33)]


def batch(pad: int = 0):
    ids, mask = padded(ROWS)
    return ids.masked_fill(mask == 0, pad), mask


def outputs(model, ids, mask, task):
    real = mask.bool()
    with torch.no_grad():
        hidden = model.base_model(ids, attention_mask=mask).last_hidden_state[real]
        if task == "feature-extraction":
            return [hidden]
        if task == "multiple-choice":
            return [hidden, model(ids.unsqueeze(1), attention_mask=mask.unsqueeze(1)).logits]
        out = model(ids, attention_mask=mask)
    if task == "question-answering":
        return [hidden, out.start_logits[real], out.end_logits[real]]
    return [hidden, out.logits if task == "text-classification" else out.logits[real]]


def assert_same(mine, theirs, task, pad=0):
    ids, mask = batch(pad)
    for unpad in (True, False):
        for model in (mine, theirs):
            if hasattr(model.config, "unpad_inputs"):
                model.config.unpad_inputs = unpad
        for a, b in zip(outputs(mine, ids, mask, task), outputs(theirs, ids, mask, task), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def assert_same_in_any_batch(model, alone, pad=0):
    """Logits, or hidden states without a head, are those of each row alone: padded on either side, and packed."""
    right = torch.stack(batch(pad))
    left = right.gather(2, right[1].argsort(dim=1, stable=True).expand_as(right))
    for ids, mask in (right, left):
        torch.testing.assert_close(model(ids, attention_mask=mask)[0][mask.bool()], alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(**packed(ROWS))[0][0], alone, atol=1e-5, rtol=1e-5)


def packed(rows):
    """A batch of one row, and the place of each text in it."""
    ids, places = torch.cat(rows)[None], torch.cat([torch.arange(len(row)) for row in rows])[None]
    return {"input_ids": ids, "position_ids": places}


GTE = published("gte-base-en-v1.5")
GTE_SIZES = {name: size for name, size in SIZES.items() if name != "max_position_embeddings"}
NOMIC = published("nomic-embed-text-v1.5")
NOMIC_SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "vocab_size": 101}
NOMIC_OLD = {**NOMIC_SIZES, "layer_norm_epsilon": 1e-12, "prenorm": False, "activation_function": "swiglu"}
NOMIC_OLD |= {"rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "use_rms_norm": None}
"""Fields of Nomic's own code, as the published files have them beside today's."""
JINA = published("jina-embeddings-v2-base-en")


def jina(folder: Path, task: str = "feature-extraction", **fields):
    """Writes a tiny JinaBERT v2, a BERT with another feed-forward network; returns its weights."""
    tiny_source(folder, "bert", task)
    generator = torch.Generator().manual_seed(4)

    def gated(state):
        outside = "" if task == "feature-extraction" else "bert."
        for layer in (f"{outside}encoder.layer.{number}." for number in range(2)):
            state[f"{layer}mlp.gated_layers.weight"] = torch.randn(96, 32, generator=generator) * 0.2
            for kind in ("weight", "bias"):
                state.pop(f"{layer}intermediate.dense.{kind}")
                state[f"{layer}mlp.wo.{kind}"] = state.pop(f"{layer}output.dense.{kind}")
                state[f"{layer}mlp.layernorm.{kind}"] = state.pop(f"{layer}output.LayerNorm.{kind}")
        state.pop(f"{outside}embeddings.position_embeddings.weight")

    edit_weights(folder, gated)
    (folder / "config.json").write_text(json.dumps({**JINA, **GTE_SIZES, **fields}))
    return load((folder / "model.safetensors").read_bytes())
