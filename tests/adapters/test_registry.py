"""What the rows of families name is there: classes, adaptations, and signatures as written."""

from __future__ import annotations

import contextlib
import inspect
import io
from pathlib import Path

import pytest

from relpos.adapters import Adapted, adapt, registry
from relpos.adapters.registry import adaptation_of, families
from relpos.adapters.why_left import _changed_signature
from tests.apart import import_apart

from .models import BY_NAME, CASES
from .models.case import Case

pytestmark = pytest.mark.no_typecheck

KNOWN_CLASSES = [(name, cls) for name, family in families().items() for cls in family.classes]


@pytest.mark.parametrize(("family", "name"), KNOWN_CLASSES)
def test_each_class_exists_with_the_signatures_that_its_adaptation_expects(family: str, name: str):
    with contextlib.redirect_stdout(io.StringIO()):  # espnet prints that it has no flash attention
        cls = getattr(import_apart(families()[family].module), name)
    adaptation = adaptation_of(cls)
    assert adaptation is not None
    assert _changed_signature(cls, adaptation) is None


@pytest.mark.parametrize(("family", "name"), KNOWN_CLASSES)
def test_what_may_be_left_out_of_a_call_may_be_left_out_of_the_adaptation_s(family: str, name: str):
    with contextlib.redirect_stdout(io.StringIO()):
        cls = getattr(import_apart(families()[family].module), name)
    adaptation = adaptation_of(cls)
    assert adaptation is not None
    for method in adaptation.signatures:
        theirs = inspect.signature(getattr(cls, method)).parameters
        ours = inspect.signature(getattr(adaptation, method, getattr(cls, method))).parameters
        optional = {n for n, x in theirs.items() if x.default is not x.empty}
        assert not {n for n in optional & set(ours) if ours[n].default is ours[n].empty}


def test_families_are_in_the_order_of_their_names():
    assert list(families()) == sorted(families())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_report_names_a_scheme_of_the_family(case: Case):
    model = case.model()
    classes = {name: type(module) for name, module in model.named_modules()}
    for name, words in adapt(model).adapted:
        adaptation = adaptation_of(classes[name])
        assert adaptation is not None
        assert words.startswith(("no positions", *adaptation.scheme.split(", or ")))


@pytest.mark.parametrize("found", ["4.57.1", "5.19.9"])
def test_an_older_transformers_is_refused_before_anything_is_changed(found, monkeypatch):
    model = BY_NAME["t5"].model()
    monkeypatch.setattr(registry, "_installed_transformers", lambda: found)
    with pytest.raises(ValueError, match=f"transformers must be 5.20 or newer, got {found}"):
        adapt(model)
    assert not any(isinstance(module, Adapted) for module in model.modules())
    monkeypatch.setattr(registry, "_installed_transformers", lambda: "5.20.0.dev0")
    assert adapt(model).adapted


def test_the_oldest_transformers_is_the_same_everywhere():
    root = Path(__file__).parents[2]
    least = ".".join(map(str, registry._TRANSFORMERS))
    assert f'"transformers>={least}"' in (root / "pyproject.toml").read_text()
    assert f"\nOLDEST := {least}." in (root / "Makefile").read_text()
    assert f"older than {least}." in (adapt.__doc__ or "")
