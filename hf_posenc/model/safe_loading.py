"""Checks when a model is saved or loaded: damaged files, an index that names files elsewhere, a changed config."""

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .scheme_code import loading_from

# Fields whose value a loader can't tell from the weights: with another value a model loads, and computes nonsense.
_BUILT_WITH = (
    "type_vocab_size",
    "tie_word_embeddings",
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "norm_position",
    "scale_embeddings",
    "classifier_hidden_act",
    "position_embedding_type",
    "position_embedding_kwargs",
    "rope_parameters",
)


def as_built(config: Any) -> dict[str, Any]:
    """Records the config values that a model is built from, for `check_as_built`."""
    return {name: copy.deepcopy(getattr(config, name)) for name in _BUILT_WITH}


def check_as_built(body: Any) -> None:
    """Refuses to save an encoder whose config was changed after it was built.

    Raises:
        ValueError: loaded again, the weights would compute something else.
    """
    for name, built in {**body.built_with, "num_hidden_layers": len(body.layers)}.items():
        if getattr(body.config, name) != built:
            raise ValueError(
                f"config.{name}={getattr(body.config, name)!r} isn't what this model was built with, {built!r}: "
                f"loaded again, the weights would compute something else. Set it back to {built!r}; where another "
                f"value is wanted, give it on loading: from_pretrained(..., {name}=...)."
            )


@contextlib.contextmanager
def guarded_loading(source: Any, arguments: dict[str, Any]) -> Iterator[None]:
    """Guards transformers' loading of `source`: an index may name only files beside it, and code needs trust.

    Raises:
        ValueError: the index names files elsewhere, or the weights are damaged, or code isn't trusted.
    """
    _check_index(Path(str(source), arguments.get("subfolder") or ""))
    try:
        with loading_from(source, arguments.get("trust_remote_code"), arguments):
            yield
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # an error of a package that this file doesn't import
            raise
        raise ValueError(
            f"The weights of {str(source)!r} are damaged ({error}). Save them anew, or download them anew with "
            "from_pretrained(..., force_download=True)."
        ) from error


def _check_index(folder: Path) -> None:
    for path in folder.glob("*.index*.json") if folder.is_dir() else ():
        try:
            shards = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
            outside = [name for name in shards if name != Path(name).name]
        except (KeyError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{str(path)!r} is damaged ({error!r:.200}). Save the model anew.") from error
        if outside:
            raise ValueError(f"{str(path)!r} names {outside[0]!r}, which isn't a file beside it. Save the model anew.")
