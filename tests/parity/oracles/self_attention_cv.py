"""AI Summer's position embeddings, without the package's models, which need torchvision."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def _pos_embeddings() -> ModuleType:
    spec = find_spec("self_attention_cv")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("self_attention_cv is not installed: run make setup")
    # An empty package in place of the one whose __init__ imports everything.
    package = ModuleType("self_attention_cv")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules.setdefault("self_attention_cv", package)
    return import_module("self_attention_cv.pos_embeddings")


_module = _pos_embeddings()
AbsPosEmb1D, RelPosEmb1D, RelPosEmb2D = (
    _module.AbsPosEmb1D, _module.RelPosEmb1D, _module.RelPosEmb2D
)  # fmt: skip
