"""What only XLNet has: memories, a second stream, and what leaves its attention as it was."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import XLNetConfig, XLNetLMHeadModel, XLNetModel

from relpos.adapters import adapt

from .models import xlnet
from .models.case import draw, tokens
from .results import original_and_adapted

pytestmark = pytest.mark.no_typecheck


def pair(
    model_class: Any = XLNetModel, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Any, Any]:
    """The original and the adapted model."""
    torch.manual_seed(0)
    model = model_class(XLNetConfig(**xlnet.SIZES | options))
    draw(model)
    return original_and_adapted(model.to(dtype).eval())


def test_an_empty_batch_with_segments_is_one():
    original, adapted = pair()
    ids = torch.zeros(0, 5, dtype=torch.int64)
    given = {"input_ids": ids, "token_type_ids": ids}
    found = adapted(**given).last_hidden_state
    assert found.shape == original(**given).last_hidden_state.shape


@pytest.mark.parametrize("mem_len", [None, 9])
@pytest.mark.parametrize("segments", [False, True])
def test_chunks_with_memories_give_what_the_original_gives(mem_len: int | None, segments: bool):
    original, adapted = pair(mem_len=mem_len)
    mems = None
    for length, padding in ((13, "left"), (1, "none"), (7, "none")):
        given = tokens(3, length, padding)
        if segments:
            given["token_type_ids"] = torch.randint(0, 3, (3, length))
        real = given.pop("attention_mask", torch.ones(3, length)) == 1
        given["input_mask"] = (~real).double()
        # What is remembered of padding differs, so both are given the same.
        theirs, ours = (model(**given, mems=mems, use_mems=True) for model in (original, adapted))
        mems = theirs.mems
        torch.testing.assert_close(
            ours.last_hidden_state[real], theirs.last_hidden_state[real], rtol=1e-10, atol=1e-10
        )
        assert [x.shape for x in ours.mems] == [x.shape for x in mems]
        if padding == "none":
            torch.testing.assert_close(ours.mems, mems, rtol=1e-10, atol=1e-10)


def test_the_second_stream_is_the_originals():
    original, adapted = pair(dtype=torch.float32)
    given = tokens(2, 11, "none")
    given["perm_mask"] = torch.rand(2, 11, 11).gt(0.6).float()
    given["target_mapping"] = torch.eye(11)[None, :4].expand(2, -1, -1)
    expected = original(**given).last_hidden_state
    assert torch.equal(adapted(**given).last_hidden_state, expected)


def test_generation_is_the_originals():
    original, adapted = pair(XLNetLMHeadModel, torch.float32)
    given = tokens(2, 9, "none") | {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = original.generate(**given)
    assert torch.equal(adapted.generate(**given), expected)


def test_training_with_dropout_runs_as_before():
    original, adapted = pair(dropout=0.3)
    given = tokens(2, 11, "right")

    def output(model: Any) -> torch.Tensor:
        torch.manual_seed(1)
        return model.train()(**given).last_hidden_state

    assert torch.equal(output(adapted), output(original))


def test_weights_and_tuples_are_the_originals():
    original, adapted = pair()
    given = tokens(2, 11, "none") | {"token_type_ids": torch.randint(0, 2, (2, 11))}
    asked = {"output_attentions": True, "output_hidden_states": True, "return_dict": False}
    for use_mems in (False, True):
        theirs = original(**given, **asked, use_mems=use_mems)
        ours = adapted(**given, **asked, use_mems=use_mems)
        assert len(ours) == len(theirs) == 3 + use_mems
        for x, y in zip(ours[-1], theirs[-1], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attn_type": "uni"}, "attn_type must be 'bi', got 'uni'"),
        ({"bi_data": True}, "bi_data has other positions for each half of the batch"),
    ],
)
def test_what_its_model_does_not_take_is_said_and_runs_as_before(options: dict, reason: str):
    torch.manual_seed(0)
    model: Any = XLNetModel(XLNetConfig(**xlnet.SIZES, **options)).eval()
    given = tokens(4, 11, "none") | {"token_type_ids": torch.randint(0, 2, (4, 11))}
    expected = model(**given).last_hidden_state
    report = adapt(model)
    assert not report.adapted
    assert report.left[0] == ("", reason)
    needs = "it needs the model adapted too, which is left"
    assert report.left[1:] == [(f"layer.{n}.rel_attn", needs) for n in range(2)]
    assert torch.equal(model(**given).last_hidden_state, expected)


@pytest.mark.parametrize("mode", ["meta", "fake"])
def test_segments_without_numbers_have_the_originals_shapes(mode: str):
    """Nobody can tell there which tokens are of one segment."""
    shapes = []
    for model in pair():
        ids = torch.zeros(2, 9, dtype=torch.int64, device="meta" if mode == "meta" else None)
        fake = FakeTensorMode(allow_non_fake_inputs=True) if mode == "fake" else nullcontext()
        with fake, torch.no_grad():
            found = model.to(ids.device)(input_ids=ids, token_type_ids=ids).last_hidden_state
        shapes.append((found.shape, found.dtype))
    assert shapes[0] == shapes[1]
