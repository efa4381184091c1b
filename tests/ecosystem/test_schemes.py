"""The registry leaves out no scheme and no layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import relpos.adapters
import relpos.layers
import relpos.positions
from tests.ecosystem.schemes import LENGTHS, SUBJECTS, inputs, made

# What is only ever subclassed.
ABSTRACT = {relpos.adapters.Adapted, relpos.positions.Position, relpos.positions.BiasPosition}


def test_every_exported_scheme_and_layer_is_in_the_registry():
    found = {type(part) for subject in SUBJECTS.values() for part in subject.make().modules()}
    for package in (relpos.positions, relpos.layers, relpos.adapters):
        exported = {getattr(package, name) for name in package.__all__}
        modules = {thing for thing in exported if isinstance(thing, type)}
        modules = {thing for thing in modules if issubclass(thing, nn.Module)} - ABSTRACT
        assert modules
        assert not modules - found


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_runs_and_is_drawn_the_same_each_time(name: str):
    for length in LENGTHS:
        outputs = [made(name)(*inputs(name, length)) for _ in range(2)]
        assert outputs[0].isfinite().all()
        assert torch.equal(*outputs)
