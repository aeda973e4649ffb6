"""From a checkpoint of the BERT family, or of ours, to a PosEnc model that computes the same."""

from dataclasses import replace

from ..model.configuration_posenc import PosEncConfig
from .building import Loaded, build_config, model_class
from .families import FAMILIES, family_of
from .from_bert import load_bert
from .from_posenc import load_posenc
from .sources import common_dtype, find_folder, fingerprint, read_config, read_weights


def load(
    source: str,
    *,
    task: str | None = None,
    num_labels: int | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    seed: int = 0,
) -> Loaded:
    """Reads a checkpoint and builds the model that computes what it does, with the scheme that it has.

    Raises:
        ValueError: it can't be read, its architecture isn't supported, or a key isn't accounted for.
    """
    if task is not None:
        model_class(task)
    folder = find_folder(source, revision, allow_pickle)
    raw = read_config(folder, source)
    is_ours = raw.get("model_type") == PosEncConfig.model_type
    family = None if is_ours else family_of(raw.get("model_type"), source)  # whatever its weights are
    tensors = read_weights(folder, source, allow_pickle)
    dtype = common_dtype(tensors.values())
    digest = fingerprint(tensors)
    tensors = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    if family is None:
        loaded = load_posenc(source, folder, raw, tensors, task, num_labels, dtype, seed)
    else:
        loaded = load_bert(source, folder, raw, tensors, family, task, num_labels, dtype, seed)
    return replace(loaded, fingerprint=digest)


__all__ = ["FAMILIES", "Loaded", "build_config", "load", "model_class"]
