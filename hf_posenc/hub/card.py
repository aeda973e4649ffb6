"""The card of a published checkpoint: its own README, with what a stranger needs to load and to trust it."""

import json
import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from hf_posenc.errors import UserError, one_line
from hf_posenc.machine import versions
from hf_posenc.training.report import HERE

TASKS = {
    "PosEncForSequenceClassification": "text-classification",
    "PosEncForTokenClassification": "token-classification",
    "PosEncForMaskedLM": "fill-mask",
    "PosEncForQuestionAnswering": "question-answering",
    "PosEncForMultipleChoice": "multiple-choice",
    "PosEncModel": "feature-extraction",
}
"""The Hub's `pipeline_tag` of each class."""

_BEGIN, _END = "<!-- hf-posenc publish -->", "<!-- end of hf-posenc publish -->"
_PINNED = re.compile(r'revision="([0-9a-f]{40})"')


def published_card(
    folder: Path,
    repo_id: str,
    model: Any,
    *,
    auto_class: str,
    revision: str | None,
    picture: str | None,
    own_code: bool,
) -> str:
    """README.md as it goes to the Hub: what the folder's says, metadata completed, and a section on loading.

    Args:
        folder: the checkpoint. Without a README one is begun, with the metrics of `results.json` if that is there.
        repo_id: where it goes.
        model: the loaded model.
        auto_class: the Auto class that loads it.
        revision: the commit that was loaded back, to pin; None before that.
        picture: the file that shows the positions.
        own_code: whether the scheme is its author's own.

    Raises:
        UserError: README.md has broken metadata.
    """
    results = _results(folder)
    path = folder / "README.md"
    try:
        card = ModelCard(path.read_text(encoding="utf-8") if path.is_file() else _begun(model, results))
    except Exception as error:  # of whichever YAML library
        raise UserError(f"{str(path)!r} has broken metadata: {one_line(error)}. Mend or delete it.") from error
    data: ModelCardData = card.data  # type: ignore[assignment]
    old, name = data.model_name or folder.resolve().name, repo_id.rpartition("/")[2]
    config, architecture = model.config, type(model).__name__
    data.library_name = data.library_name or "transformers"
    data.pipeline_tag = data.pipeline_tag or TASKS.get(architecture)
    data.tags = list(dict.fromkeys([*(data.tags or []), "posenc", config.position_embedding_type, "custom_code"]))
    data.model_name = name if data.eval_results else None
    text = re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}\n?", "", card.text, flags=re.DOTALL)
    text = re.sub(rf"\A\s*# {re.escape(old)}\n", f"# {name}\n", text).replace(f'"{HERE}"', f'"{repo_id}"').rstrip()
    section = _loading(repo_id, model, auto_class, revision, picture, own_code, results)
    return f"---\n{data.to_yaml()}\n---\n{text}\n\n{_BEGIN}\n{section}\n{_END}\n"


def pinned_commit(text: str) -> str | None:
    """The commit that a published card says was loaded back; None: it doesn't say so."""
    found = _PINNED.search(text.rpartition(_BEGIN)[2])
    return found and found[1]


def _results(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    parts = {name: found.get(name) if isinstance(found, dict) else None for name in ("metrics", "summary")}
    results = {name: part for name, part in parts.items() if isinstance(part, dict)}
    metrics = results.get("metrics", {}).items()
    return {**results, "metrics": {name: value for name, value in metrics if isinstance(value, int | float)}}


def _begun(model: Any, results: dict[str, Any]) -> str:
    scheme = model.config.position_embedding_type
    lines = [
        "---",
        "library_name: transformers",
        "---",
        "# Model",
        "",
        f"A PosEnc encoder (`{type(model).__name__}`) whose positional scheme is `{scheme}`.",
    ]
    quoted = {key: v for key, v in results["metrics"].items() if re.match("(eval|test)_", key)}
    quoted = {key: v for key, v in quoted.items() if not re.search("runtime|per_second|preparation", key)}
    if quoted:
        lines += ["", "## Results", "", "| metric | value |", "|---|---|"]
        lines += [f"| {key} | {value:.4f} |" for key, value in quoted.items()]
    return "\n".join(lines)


def _loading(
    repo_id: str,
    model: Any,
    auto_class: str,
    revision: str | None,
    picture: str | None,
    own_code: bool,
    results: dict[str, Any],
) -> str:
    config = model.config
    limit = model.base_model.position.max_length
    measured = results.get("summary", {}).get("max_length")
    pinned = f'"{repo_id}", revision="{revision}"' if revision else f'"{repo_id}"'
    lines = [
        "## Loading",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {auto_class}",
        "",
        f"model = {auto_class}.from_pretrained({pinned}, trust_remote_code=True)",
        # It looks into the config, too, which is code: without the permission it would ask for it.
        f"tokenizer = AutoTokenizer.from_pretrained({pinned}, trust_remote_code=True)",
        "```",
        "",
        "`trust_remote_code=True` runs the Python files of this repository: "
        + (
            f"those of hf_posenc {config.posenc_version} and, for the scheme `{config.position_embedding_type}`, "
            "its author's. Read them first; `revision` makes sure that they stay the ones that you read."
            if own_code
            else f"those of hf_posenc {config.posenc_version}, unchanged. `revision` makes sure that they stay so."
        ),
        "Where hf_posenc is installed its own classes are used instead. The weights are safetensors; `SHA256SUMS` has "
        "the checksum of every file (`sha256sum -c SHA256SUMS`).",
        "",
        "## Length",
        "",
        (
            f"It takes inputs of at most {limit} tokens: its positions are a table."
            if limit is not None
            else "Its positions have no last one: it takes inputs of any length."
        )
        + (
            f" It was trained and measured on inputs of at most {measured} tokens, and on nothing longer."
            if measured
            else ""
        ),
    ]
    if picture is not None:
        lines += ["", f"![What the positions do]({picture})"]
    if revision is not None:
        known = ", ".join(f"{name} {number}" for name, number in versions().items() if number != "unknown")
        lines += [
            "",
            "## Checked",
            "",
            f"A process without hf_posenc loaded commit `{revision}` of this repository: checksums, weights, outputs "
            f"and tokenizer were those of the author's. Versions: {known}.",
        ]
    return "\n".join(lines)
