"""Libraries that lie apart from the environment: `import_apart("timm.models.beit")`.

timm needs torchvision, whose wheel is for a torch with CUDA: beside another its compiled part does
not load, and transformers, which uses torchvision wherever it finds it, fails then. The
others need much that their attention does not. `make setup` puts them, and nothing that they
need, into a folder of their own, which transformers, asked before, has not seen. While one is
imported, stand-ins take the place of what it asks for and its attention does not use.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from torch.library import Library
from transformers.utils.import_utils import (
    is_natten_available,
    is_sentencepiece_available,
    is_timm_available,
    is_torchaudio_available,
    is_torchvision_available,
    is_torchvision_v2_available,
)

__all__ = ["import_apart"]

FOLDER = Path(sys.prefix) / "apart"

# Of operators that torchvision's compiled part defines, those that the rest cannot do without.
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# What the libraries of OpenMMLab ask for.
_OF_MM = (
    "cv2", "mmcv.cnn.rfsearch", "mmcv.ops", "mmengine.dataset", "mmengine.hooks",
    "mmengine.runner", "yapf",
)  # fmt: skip

# By library, modules that stand-ins replace while it is imported.
REPLACED = {
    "borzoi_pytorch": ("intervaltree", "pandas"),
    "enformer_pytorch": ("discrete_key_value_bottleneck_pytorch", "polars", "pyfaidx"),
    "fairseq2": ("fairseq2n",),
    "mmaction": _OF_MM,
    "mmdet": (*_OF_MM, "mmdet.structures"),
    "mmpretrain": (*_OF_MM, "mmdet", "mmpretrain.models.utils.tokenizer", "mmpretrain.utils"),
    "mmseg": (*_OF_MM, "ftfy"),
    "nemo": (
        "hydra", "omegaconf", "nv_one_logger", "nemo.collections.asr.models",
        "nemo.collections.asr.modules.transformer", "nemo.core.classes.modelPT", "torchaudio",
    ),
    "speechbrain": ("hyperpyyaml", "ruamel", "sentencepiece", "torchaudio"),
    "ultralytics": ("ultralytics.nn.modules.head", "ultralytics.utils"),
}  # fmt: skip

# By library, packages of it that import more than what is asked of them.
BARE = {
    "TTS": (
        "TTS", "TTS.tts", "TTS.tts.layers", "TTS.tts.layers.glow_tts", "TTS.tts.utils", "TTS.vc",
        "TTS.vc.layers", "TTS.vc.layers.freevc", "TTS.vc.layers.freevc.wavlm",
    ),
    "fairseq2": (
        "fairseq2", "fairseq2.models", "fairseq2.models.transformer",
        "fairseq2.models.transformer.sdpa",
    ),
    "funasr": ("funasr",),
    "kornia": ("kornia", "kornia.models", "kornia.models.sam", "kornia.models.sam.architecture"),
    "mmaction": ("mmcv", "mmaction", "mmaction.models", "mmaction.models.backbones"),
    "mmdet": ("mmcv", "mmdet", "mmdet.models", "mmdet.models.backbones"),
    "mmpretrain": ("mmcv", "mmpretrain", "mmpretrain.models", "mmpretrain.models.backbones"),
    "mmseg": ("mmcv", "mmseg", "mmseg.models", "mmseg.models.backbones"),
    "nemo": (
        "nemo", "nemo.collections", "nemo.collections.asr", "nemo.collections.asr.modules",
        "nemo.collections.asr.parts", "nemo.collections.asr.parts.mixins",
        "nemo.collections.asr.parts.submodules", "nemo.collections.asr.parts.submodules.adapters",
        "nemo.collections.asr.parts.utils", "nemo.collections.common",
        "nemo.collections.common.parts",
    ),
    "piper": ("piper", "piper.train", "piper.train.vits"),
    "spandrel": (
        "spandrel", "spandrel.architectures", "spandrel.architectures.DRCT",
        "spandrel.architectures.HAT", "spandrel.architectures.Swin2SR",
        "spandrel.architectures.SwinIR",
    ),
    "s3prl": ("s3prl", "s3prl.upstream", "s3prl.upstream.wavlm"),
    # What it imports when something is asked of it, it leaves among the modules that are there.
    "speechbrain": ("speechbrain",),
    # Whose compiled part is for a torch with CUDA.
    "torchaudio": ("torchaudio", "torchaudio.models", "torchaudio.models.wav2vec2"),
    "ultralytics": (
        "ultralytics", "ultralytics.models", "ultralytics.models.sam", "ultralytics.nn",
    ),
}  # fmt: skip


@cache
def import_apart(name: str) -> Any:
    """A module of the environment, or of a library that lies apart from it."""
    library = name.partition(".")[0]
    if library not in _find_libraries():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which are not this project's
            return import_module(name)
    for package in BARE.get(library, ()):
        if package not in sys.modules:
            bare = sys.modules[package] = ModuleType(package)
            bare.__path__ = [str(FOLDER.joinpath(*package.split(".")))]
            holder, _, last = package.rpartition(".")
            if holder:
                setattr(sys.modules[holder], last, bare)
    with _replaced(REPLACED.get(library, ())), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)  # of what it does without
        # Not for longer: processes that this one spawns have the same path.
        sys.path.append(str(FOLDER))
        try:
            return import_module(name)
        finally:
            sys.path.remove(str(FOLDER))
            logging.disable(disabled)


@cache
def _find_libraries() -> dict[str, Any]:
    """The libraries that are not in the environment, with what goes if it is not kept."""
    # Both remember what they have not found: stand-ins would be found.
    import_module("lightning.pytorch")
    for remembered in (
        is_natten_available, is_sentencepiece_available, is_timm_available,
        is_torchaudio_available, is_torchvision_available, is_torchvision_v2_available,
    ):  # fmt: skip
        remembered()
    names = {path.name for path in FOLDER.glob("*") if path.is_dir() and "." not in path.name}
    found: dict[str, Any] = {name: None for name in names if find_spec(name) is None}
    if "torchvision" in found:
        found["torchvision"] = operators = Library("torchvision", "FRAGMENT")
        for schema in OPERATORS:
            operators.define(schema)
    return found


@contextmanager
def _replaced(names: tuple[str, ...]) -> Iterator[None]:
    """While this lasts, modules of these names are stand-ins, where they are asked for anew.

    So are those of libraries that lie apart and have been imported.
    """
    finder, apart = _StandIns(names), _find_libraries()
    there = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if finder.has(name) and name.partition(".")[0] in apart
    }
    before = set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if isinstance(sys.modules[name], _StandIn):
                del sys.modules[name]
        sys.modules.update(there)


class _StandIns(MetaPathFinder, Loader):
    """Finds stand-ins of these names, and of whatever is within them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if self.has(fullname) else None

    def has(self, fullname: str) -> bool:
        return any(fullname == name or fullname.startswith(f"{name}.") for name in self.names)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandIn(ModuleType):
    """Whatever is asked of it is a class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (_Anything,), {})


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class _Anything(metaclass=_AnyClass):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __init_subclass__(cls, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()
