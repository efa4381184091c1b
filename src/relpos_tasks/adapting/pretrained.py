"""A saved model of transformers by the class, or else the type, that its configuration names."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn

__all__ = ["load_pretrained"]

# What transformers raises for a configuration or weights that are wrong, or for a quantisation
# whose package is missing.
_UNREADABLE = (
    ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError,
    SafetensorError, StrictDataclassError, TypeError, ValueError,
)  # fmt: skip


def load_pretrained(folder: Path) -> nn.Module:
    """The model in a folder that `save_pretrained` wrote, in evaluation.

    It warns of weights that are not there, such as those of a new head.

    Args:
        folder: with `config.json` and weights.

    Raises:
        ValueError: if there is no such folder, file or class, the weights cannot be read, or they
            are an adapter's alone.
    """
    path = folder / "config.json"
    if (folder / "adapter_config.json").is_file():
        raise ValueError(
            f"adapt: model must be a folder of a whole model, got {str(folder)!r} with an adapter "
            "of PEFT: merge_and_unload() and save_pretrained() make one, and adapt(model) takes a "
            "model with adapters as it is"
        )
    if not path.is_file():
        raise ValueError(
            f"adapt: model must be a folder with a config.json, got {str(folder)!r}; nothing is "
            "downloaded: save_pretrained makes such a folder"
        )
    try:
        said = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"adapt: {path} must be a model's configuration, got {error}") from error
    if not isinstance(said, dict):
        raise ValueError(f"adapt: {path} must be a model's configuration, got a JSON {said!r:.60}")
    names = said.get("architectures") or [_base_model(said.get("model_type"))]
    name = names[0] if isinstance(names, list) else names
    cls = _class_named(name, said.get("model_type"))
    if cls is None:
        raise ValueError(
            f"adapt: {path} must name an architecture of transformers {transformers.__version__}, "
            f"got {name}"
        )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wanted = f"adapt: {folder} must hold a saved {name} whose weights fit its configuration, got "
    try:
        loaded: Any = cls.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except _UNREADABLE as error:
        raise ValueError(wanted + " ".join(str(error).split())) from error
    model, info = loaded
    if misfits := sorted(info["mismatched_keys"]):
        weight, found, needed = misfits[0]
        raise ValueError(f"{wanted}{weight} of {tuple(found)}, where it says {tuple(needed)}")
    if missing := sorted(info["missing_keys"]):
        warnings.warn(
            f"{folder} lacks weights of {name}, which are random here: {len(missing)}, the first "
            f"{missing[0]}",
            stacklevel=2,
        )
    return model.eval()


def _class_named(name: Any, kind: Any) -> Any:
    """The class of a model, of those that transformers shows or of its type's own; None if none."""
    if not isinstance(name, str):
        return None
    cls = getattr(transformers, name, None)
    if cls is None:
        with suppress(ImportError, KeyError, TypeError):
            config: Any = transformers.CONFIG_MAPPING[kind]
            models = import_module(config.__module__.replace(".configuration_", ".modeling_"))
            cls = getattr(models, name, None)
    known = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    return cls if known else None


def _base_model(kind: Any) -> str:
    """The class of a type's model without a head, for a configuration that names none."""
    try:
        base: Any = transformers.MODEL_MAPPING[transformers.CONFIG_MAPPING[kind]]
        return (base[0] if isinstance(base, tuple) else base).__name__
    except (AttributeError, KeyError, TypeError):
        return "(none)"
