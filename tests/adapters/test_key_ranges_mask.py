"""A mask that is ranges of keys is, to whoever works on it, the mask of all pairs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from relpos.adapters.key_ranges_mask import KeyRangesMask

pytestmark = pytest.mark.no_typecheck

RANGES = torch.tensor([[[0, 1], [0, 4], [2, 5]], [[1, 1], [0, 2], [3, 5]]])[:, None]
PADDING = torch.tensor([[True, True, True, False, True], [False, True, True, True, True]])
SEEN = torch.tensor([
    [[1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [0, 0, 1, 1, 1]],
    [[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1]],
]).bool()[:, None]  # fmt: skip


@pytest.fixture(params=["whole", "padded"])
def masks(request: pytest.FixtureRequest) -> tuple[KeyRangesMask, Tensor]:
    """A mask of ranges, and the same of pairs."""
    if request.param == "whole":
        return KeyRangesMask(RANGES, 5), SEEN
    return KeyRangesMask(RANGES, 5, PADDING), SEEN & PADDING[:, None, None]


def test_it_stands_for_a_mask_of_pairs(masks):
    mask, pairs = masks
    assert torch.equal(mask.pairs(), pairs)
    assert (mask.shape, mask.dtype, mask.device) == (pairs.shape, pairs.dtype, pairs.device)
    assert "keys=5" in repr(mask)


def test_numbers_are_0_for_pairs_that_take_part():
    mask = KeyRangesMask(RANGES, 5, PADDING, torch.bfloat16)
    wanted = torch.full(SEEN.shape, torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16)
    wanted = wanted.masked_fill(SEEN & PADDING[:, None, None], 0)
    assert torch.equal(mask.pairs(), wanted)
    assert torch.equal(torch.ones(2, 1, 3, 5).bfloat16() + mask, 1 + wanted)


SLICES = (None, -7, -2, 0, 1, 3, 5, 9)
KEPT: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda x: x.detach(),
    "to a device": lambda x: x.to("cpu", copy=True),
    "to its dtype": lambda x: x.to(torch.bool, copy=True),
    "contiguous": lambda x: x.contiguous(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "a row": lambda x: x[1:],
    "every second query": lambda x: x[:, :, ::2],
    "the head": lambda x: x[:, :1],
} | {
    f"keys {start}:{end}": lambda x, start=start, end=end: x[:, :, :, start:end]
    for start in SLICES
    for end in SLICES
}


@pytest.mark.parametrize("name", KEPT)
def test_it_stays_ranges(name, masks):
    mask, pairs = masks
    found = KEPT[name](mask)
    assert type(found) is KeyRangesMask
    assert torch.equal(found.pairs(), KEPT[name](pairs))


WORK: dict[str, Callable[[Any], Tensor]] = {
    "not": lambda x: ~x,
    "and": lambda x: x & x,
    "every second key": lambda x: x[..., ::2],
    "without heads": lambda x: x[:, 0],
    "cat": lambda x: torch.cat([torch.ones(2, 1, 3, 1, dtype=torch.bool), x], dim=-1),
    "expand": lambda x: x.expand(-1, 4, -1, -1),
    "to numbers": lambda x: x.to(torch.float32),
    "where": lambda x: torch.where(x, 0.0, -1.0),
    "masked_fill": lambda x: torch.zeros(3, 5).masked_fill(x, 2.0),
    "any": lambda x: x.any(-1),
    "copied from": lambda x: x.new_zeros(x.shape).copy_(x),
    "written into": lambda x: x.clone().masked_fill_(x, value=False),
}


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("compiled", [False, True], ids=["", "compiled"])
def test_work_is_done_on_the_mask_of_pairs(name, compiled, masks):
    mask, pairs = masks
    work = WORK[name]
    if compiled:
        torch._dynamo.reset()
        work = torch.compile(work, backend="aot_eager", fullgraph=True)
    found = work(mask)
    assert type(found) is Tensor or found.viewed
    assert torch.equal(found, WORK[name](pairs))


WRITES: dict[str, Callable[[Any], object]] = {
    "itself": lambda x: x.logical_not_(),
    "an entry": lambda x: x.__setitem__((..., 0), True),
    "a view": lambda x: x[:, 0].masked_fill_(torch.ones(3, 5).bool(), value=False),
    "a transposed view": lambda x: x.mT[:, :, 1:3].logical_not_(),
    "a piece": lambda x: x[:, :, 1:, 1:].logical_not_(),
    "a piece of a piece": lambda x: x[:, :, 1:][..., 2:4][:, 0].fill_(value=True),
    "a detached view": lambda x: x.detach()[0].fill_(value=True),
    "out": lambda x: torch.logical_and(torch.ones(2, 1, 3, 5).bool(), torch.tensor(True), out=x),
    "in a list": lambda x: torch._foreach_copy_([x], [torch.ones(2, 1, 3, 5).bool()]),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_into_it_counts(name, masks):
    mask, pairs = masks
    wanted = pairs.clone()
    later = {"before": mask[:, :, 1:]}
    assert not mask.viewed
    WRITES[name](mask)
    WRITES[name](wanted)
    later["after"] = mask[:, :, 1:]
    assert mask.viewed
    assert torch.equal(mask.pairs(), wanted)
    for piece in later.values():
        assert torch.equal(piece | torch.zeros(1).bool(), wanted[:, :, 1:])
    assert torch.equal(pickle.loads(pickle.dumps(mask)), wanted)


def test_a_copy_is_written_into_alone(masks):
    mask, pairs = masks
    for made in (copy.deepcopy(mask), mask.to("cpu", copy=True)):
        assert type(made) is KeyRangesMask
        made[:, 0] = False
        assert made.viewed
        assert not made.pairs().any()
    assert torch.equal(mask.pairs(), pairs)
    assert not mask.viewed


def test_it_is_not_traced_once_others_have_views_of_it(masks):
    mask, _ = masks
    mask[:, 0] = False
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="a mask that others have views of must not be traced"):
        torch.compile(torch.logical_not, backend="aot_eager", fullgraph=True)(mask)


def test_in_inference_mode_what_was_written_counts(masks):
    with torch.inference_mode():
        mask = copy.deepcopy(masks[0])
        mask[:, 0].fill_(value=True)
        assert mask.viewed
    assert mask.pairs().all()


def test_compiled_code_writes_into_clones_alone(masks):
    mask, pairs = masks
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.logical_not_(), backend="aot_eager")
    with pytest.raises(RuntimeError, match="clones of masks alone, got aten"):
        compiled(mask)
    assert torch.equal(mask.pairs(), pairs)
