"""The card of a published checkpoint: its README, with metadata and a section on loading added."""

import json
import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from hf_posenc.errors import UserError, one_line
from hf_posenc.machine import version_line
from hf_posenc.markdown import render
from hf_posenc.tasks import CLASSES
from hf_posenc.training.report import HERE

TEMPLATES = Path(__file__).parent
_BEGIN, _END = "<!-- hf-posenc publish -->", "<!-- end of hf-posenc publish -->"


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
    """The README.md that is sent to the Hub: the folder's text, complete metadata, and a section on loading.

    Args:
        folder: the checkpoint. Without a README one is begun, with the metrics of `results.json` if that is there.
        repo_id: where it goes.
        model: the loaded model.
        auto_class: the Auto class that loads it.
        revision: the commit that was loaded back, to pin; None before that.
        picture: the file that shows the positions.
        own_code: whether the scheme is a custom one.

    Raises:
        UserError: README.md has broken metadata.
    """
    results = _results(folder)
    path = folder / "README.md"
    try:
        card = ModelCard(path.read_text(encoding="utf-8") if path.is_file() else _new_card(model, results))
    except Exception as error:  # of whichever YAML library
        raise UserError(f"{str(path)!r} has broken metadata: {one_line(error)}. Mend or delete it.") from error
    data: ModelCardData = card.data  # type: ignore[assignment]
    old, name = data.model_name or folder.resolve().name, repo_id.rpartition("/")[2]
    data.library_name = data.library_name or "transformers"
    data.pipeline_tag = data.pipeline_tag or CLASSES.get(type(model).__name__)
    scheme = model.config.position_embedding_type
    data.tags = list(dict.fromkeys([*(data.tags or []), "posenc", scheme, "custom_code"]))
    data.model_name = name if data.eval_results else None
    data.verified_commit = revision  # type: ignore[attr-defined]
    text = re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}\n?", "", card.text, flags=re.DOTALL)
    text = re.sub(rf"\A\s*# {re.escape(old)}\n", f"# {name}\n", text).replace(f'"{HERE}"', f'"{repo_id}"').rstrip()
    loading = render(
        TEMPLATES / "loading.md.jinja",
        repo_id=repo_id,
        revision=revision,
        auto_class=auto_class,
        config=model.config,
        own_code=own_code,
        limit=model.base_model.position.max_length,
        measured=results.get("max_length"),
        picture=picture,
        versions=version_line(),
    )
    card.text = f"{text}\n\n{_BEGIN}\n{loading}{_END}\n"
    return card.content


def pinned_commit(text: str) -> str | None:
    """The verified commit in a published card's metadata; None if it names none, or has broken metadata."""
    try:
        commit = ModelCard(text).data.get("verified_commit")
    except Exception:  # of whichever YAML library
        return None
    return commit if isinstance(commit, str) else None


def _results(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    record = record if isinstance(record, dict) else {}
    metrics = record["metrics"].items() if isinstance(record.get("metrics"), dict) else ()
    numbers = {name: value for name, value in metrics if isinstance(value, int | float)}
    return {"metrics": numbers, "max_length": record.get("max_length")}


def _new_card(model: Any, results: dict[str, Any]) -> str:
    left_out = re.compile("runtime|per_second|preparation")
    return render(
        TEMPLATES / "new_card.md.jinja",
        architecture=type(model).__name__,
        scheme=model.config.position_embedding_type,
        metrics=[
            (name, f"{value:.4f}")
            for name, value in results["metrics"].items()
            if re.match("(eval|test)_", name) and not left_out.search(name)
        ],
    )
