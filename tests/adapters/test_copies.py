"""Copies of known classes: a file loaded once more, under another name, and what is no copy."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
import torch
from torch import nn

from relpos.adapters import Adapted, adapt, families, register, registry, restore
from tests.apart import import_apart

from .models import BY_NAME
from .models.case import Case

pytestmark = pytest.mark.no_typecheck

# By case, the family whose file is copied.
COPIED = {
    "piper": "piper",
    "monai swin": "monai_swin",
    "funasr": "funasr",
    "SamHQVisionConfig sdpa": "sam_hq",
    "t5": "t5",
    "vits": "vits",
    "wavlm with stable layer norm": "wavlm",
    "deberta_v3": "deberta_v2",
    "s3prl wavlm": "s3prl",
    "timm mvitv2": "timm_mvitv2",
    "swin": "swin",
    "segment_anything": "segment_anything",
}


@cache
def copy_of(module: str) -> ModuleType:
    """The file of a module as a module of its own, of another name."""
    original = import_apart(module)
    name = f"{module}_copied"
    spec = spec_from_file_location(name, original.__file__)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = copied = module_from_spec(spec)
    with catch_warnings():
        simplefilter("ignore")  # of models that timm has by the same names
        spec.loader.exec_module(copied)
    return copied


def copied_model(case: Case, family: str) -> nn.Module:
    """The case's model in float64, with the classes of a copy of the family's file."""
    module = families()[family].module
    model = case.model(torch.float64)
    for part in model.modules():
        if type(part).__module__ == module:
            part.__class__ = getattr(copy_of(module), type(part).__qualname__)
    return model


@pytest.mark.parametrize(("name", "family"), COPIED.items())
def test_a_copy_is_left_until_it_is_registered_and_then_computes_the_same(name: str, family: str):
    case, known = BY_NAME[name], families()[family]
    model = copied_model(case, family)
    inputs = case.with_dtype(case.inputs(2, case.lengths[0], case.paddings[-1]), torch.float64)
    expected, _ = case.call(model, inputs)
    report = adapt(model)
    assert not report.adapted
    assert any("relpos does not know" in reason for _, reason in report.left)
    assert any(f"{family}." in reason for _, reason in report.left)
    for cls in known.classes:
        register(getattr(copy_of(known.module), cls), like=f"{family}.{cls}")
    assert len(adapt(model, strict=True).adapted) == case.adapted
    found, _ = case.call(model, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    restore(model)
    assert torch.equal(case.call(model, inputs)[0], expected)


def test_classes_that_act_together_are_adapted_together_or_not_at_all():
    case = BY_NAME["speecht5"]
    model = copied_model(case, "speecht5")
    copied = copy_of(families()["speecht5"].module)
    register(copied.SpeechT5Attention, like="speecht5.SpeechT5Attention")
    register(copied.SpeechT5Encoder, like="speecht5.SpeechT5Encoder")
    reasons = {reason for _, reason in adapt(model).left}
    assert (
        "copies of speecht5.SpeechT5RelativePositionalEncoding must be registered beside it"
        in reasons
    )
    register(
        copied.SpeechT5RelativePositionalEncoding,
        like="speecht5.SpeechT5RelativePositionalEncoding",
    )
    assert len(adapt(model, strict=True).adapted) == case.adapted


@pytest.mark.parametrize(
    ("name", "family", "found"),
    [("deberta_v3", "deberta_v2", "DebertaV2Encoder"), ("mpnet", "mpnet", "MPNetEncoder")],
)
def test_a_copy_that_is_no_attention_asks_for_the_others(name, family, found, monkeypatch):
    for registered in ("_OWN", "_LIKE"):
        monkeypatch.setattr(registry, registered, {})
    case, known = BY_NAME[name], families()[family]
    model, copied = copied_model(case, family), copy_of(known.module)
    assert f"if it is a copy of {family}.{found}" in str(adapt(model))
    register(getattr(copied, found), like=f"{family}.{found}")
    others = [cls for cls in known.classes if cls != found]
    listed = ", ".join(f"{family}.{cls}" for cls in others)
    with pytest.raises(ValueError, match=f"in the family alone: register those of {listed} too"):
        adapt(model)
    for cls in others:
        register(getattr(copied, cls), like=f"{family}.{cls}")
    assert len(adapt(model, strict=True).adapted) == case.adapted


def test_a_copy_that_nothing_is_seen_of_is_spoken_of():
    with pytest.raises(ValueError, match=r"a copy of such a class is adapted once relpos.adapters"):
        adapt(torch.nn.Linear(2, 2))


WITHOUT_TRANSFORMERS = """
import importlib.metadata, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "transformers":
            raise ModuleNotFoundError(name, name=name)

def version(name, found=importlib.metadata.version):
    if name == "transformers":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

sys.meta_path.insert(0, Finder())
importlib.metadata.version = version
import torch
from relpos.adapters import adapt
unknown = torch.nn.Module()
unknown.emb_rel_k = torch.nn.Parameter(torch.randn(9, 2))
print(len(adapt(unknown).left))
"""


def test_without_transformers_what_is_unknown_is_left_as_before():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRANSFORMERS], capture_output=True, text=True, check=False
    )
    assert run.stdout == "1\n", run.stderr


class Windows(nn.Module):
    """Swin's attention in windows, less what tests put beside it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.randn(9, 2))
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.attn_drop, self.proj_drop = nn.Dropout(0.0), nn.Dropout(0.0)
        self.num_heads, self.scale, self.window_size = 2, 0.5, (2, 2)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x, mask=None):
        raise AssertionError("the original runs")


def test_the_report_names_what_an_unknown_class_is_built_like():
    (left,) = adapt(Windows()).left
    assert left[1] == (
        "looks like relative attention, but relpos does not know Windows; if it is a copy of "
        "monai_swin.WindowAttention or timm_swin.WindowAttention: "
        "relpos.adapters.register(..., like=...)"
    )


def test_what_lacks_an_attribute_is_not_built_like_it_and_is_left():
    class Other(Windows):
        def __init__(self):
            super().__init__()
            del self.scale, self.num_heads

    assert adapt(Other()).left[0][1].endswith("does not know Other")
    register(Other, like="monai_swin.WindowAttention")
    assert adapt(Other()).left == [("", "Other has no num_heads, scale")]


def test_one_number_is_no_tuple_and_it_is_left():
    class Other(Windows):
        pass

    register(Other, like="timm_swin.WindowAttention")
    assert adapt(Other()).adapted
    (left,) = adapt(Other(window_size=2)).left
    assert left == ("", "Other has no window_size that is a tuple")


def test_what_lacks_the_attribute_that_says_whether_it_is_relative_is_left():
    class Other(Windows):
        def forward(self, x):
            raise AssertionError

    register(Other, like="segment_anything.Attention")
    assert adapt(Other()).left == [("", "Other has no rel_pos_h, rel_pos_w, use_rel_pos")]


def test_other_arguments_are_another_class():
    class Other(Windows):
        def forward(self, x, rpi):
            raise AssertionError

    assert adapt(Other()).left[0][1].endswith("does not know Other")
    register(Other, like="monai_swin.WindowAttention")
    (left,) = adapt(Other()).left
    assert left[1].startswith("Other.forward has the parameters self, x, rpi here")


def test_a_subclass_is_adapted_once_it_is_registered():
    attention = type(BY_NAME["t5"].model().get_submodule(BY_NAME["t5"].attention))
    renamed = type("Renamed", (attention,), {})
    case = BY_NAME["t5"]
    model = case.model()
    for part in model.modules():
        if type(part) is attention:
            part.__class__ = renamed
    inputs = case.inputs(2, 20, "none")
    expected, _ = case.call(model, inputs)
    assert "a subclass of T5Attention" in adapt(model).left[0][1]
    register(renamed, like="t5.T5Attention")
    assert len(adapt(model, strict=True).adapted) == case.adapted
    torch.testing.assert_close(case.call(model, inputs)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("like", "near"),
    [
        ("swin.SwinAttentoin", "swin.SwinAttention"),
        ("SwinAttention", "swin.SwinAttention"),
        ("t5.SwinAttention", "swin.SwinAttention"),
        ("piper", "piper.MultiHeadAttention"),
        ("", ""),
        (nn.Linear, ""),
    ],
)
def test_like_must_be_a_class_of_a_family(like: Any, near: str):
    with pytest.raises(ValueError, match=rf"register: like must be family.Class, .* {near}.*got"):
        register(Windows, like=like)


def adapted_class() -> type[nn.Module]:
    model = BY_NAME["t5"].model()
    adapt(model)
    return type(model.get_submodule(BY_NAME["t5"].attention))


@pytest.mark.parametrize("original", [lambda: nn.Module, lambda: Adapted, adapted_class])
def test_what_is_no_class_of_a_library_is_refused(original: Any):
    with pytest.raises(TypeError, match="original must be a class of attention"):
        register(original(), like="t5.T5Attention")


def test_a_known_class_is_like_itself_alone():
    known = import_apart(families()["t5"].module).T5Attention
    own = type("Own", (Adapted,), {"scheme": "own"})
    register(known, own)
    assert registry.adaptation_of(known) is own
    register(known, like="t5.T5Attention")
    assert registry.adaptation_of(known) is not own
    with pytest.raises(ValueError, match=r"must be no known class, got t5.T5Attention with like="):
        register(known, like="mpnet.MPNetSelfAttention")


def test_the_error_of_an_older_transformers_is_that_of_register(monkeypatch):
    monkeypatch.setattr(registry, "_installed_transformers", lambda: "5.19.9")
    with pytest.raises(ValueError, match=r"register: transformers must be 5.20 or newer"):
        register(Windows, like="t5.T5Attention")


@pytest.mark.parametrize("given", [{}, {"adaptation": Adapted, "like": "t5.T5Attention"}])
def test_one_of_adaptation_and_like_must_be_given(given: dict[str, Any]):
    with pytest.raises(TypeError, match=r"either adaptation or like must be given, got (nei|bo)th"):
        register(Windows, **given)


def test_a_class_of_torch_is_no_copy():
    with pytest.raises(TypeError, match="original must be a class of attention"):
        register(nn.Linear, like="timm_swin.WindowAttention")
