import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relpos
from relpos.layers import KeyValueCache

from ..factories import normal


@given(chunks=st.lists(st.integers(0, 9), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_chunks_come_back_joined(chunks):
    k, v = normal(2, 3, sum(chunks), 4), normal(2, 3, sum(chunks), 5, seed=1)
    cache = KeyValueCache()
    for k_, v_ in zip(k.split(chunks, 2), v.split(chunks, 2), strict=True):
        keys, values = cache.append(k_, v_)
        assert torch.equal(keys, k[:, :, : cache.length])
        assert torch.equal(values, v[:, :, : cache.length])
    assert cache.length == sum(chunks)


def test_one_token_at_a_time_copies_the_buffer_rarely():
    cache, addresses = KeyValueCache(), set()
    for _ in range(1000):
        keys, _ = cache.append(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
        addresses.add(keys.data_ptr())
        assert keys.untyped_storage().nbytes() <= 2 * keys.numel() * keys.element_size()
    assert len(addresses) <= 11


def test_earlier_views_stay_as_they_were():
    cache = KeyValueCache()
    first, _ = cache.append(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2))
    cache.append(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    cache.reset()
    cache.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    assert torch.equal(first, torch.ones(1, 1, 3, 2))


def test_no_graph_is_kept():
    x = torch.ones(1, 1, 3, 2, requires_grad=True)
    cache = KeyValueCache()
    for _ in range(2):
        keys, values = cache.append(x * 2, x * 3)
        assert not keys.requires_grad
        assert not values.requires_grad


def test_reset_starts_again_with_any_shape():
    cache = KeyValueCache()
    cache.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    cache.reset()
    assert cache.length == 0
    keys, _ = cache.append(torch.ones(5, 2, 1, 7), torch.ones(5, 2, 1, 7))
    assert keys.shape == (5, 2, 1, 7)


def test_reorder_takes_batch_entries_along():
    k = normal(3, 2, 4, 5)
    cache = KeyValueCache()
    cache.reorder(torch.tensor([0]))
    cache.append(k, k)
    cache.reorder(torch.tensor([2, 2, 0, 1]))
    keys, values = cache.append(k[[0, 0, 0, 0], :, :1], k[[0, 0, 0, 0], :, :1])
    assert torch.equal(keys[:, :, :4], k[[2, 2, 0, 1]])
    assert torch.equal(values[:, :, :4], k[[2, 2, 0, 1]])


def test_a_copy_goes_its_own_way():
    cache = KeyValueCache()
    cache.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    other = copy.deepcopy(cache)
    other.append(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    assert (cache.length, other.length) == (3, 4)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("k", "v", "words"),
    [
        (torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2), "k must be .* with b=1, g=1, d=2, got"),
        (torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 3), "v must be .* with b=1, g=1, d=2, got"),
        (torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2), "v must be .* i=1, got"),
        (torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), "k must be"),
        (
            torch.zeros(1, 1, 1, 2, dtype=torch.float16),
            torch.zeros(1, 1, 1, 2, dtype=torch.float16),
            "k must be torch.float32 on cpu as the tokens before, got torch.float16",
        ),
    ],
)
def test_tokens_that_do_not_continue_are_named_and_not_kept(k, v, words):
    cache = KeyValueCache()
    cache.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    with pytest.raises(relpos.ShapeError, match=rf"KeyValueCache.append: {words}"):
        cache.append(k, v)
    assert cache.length == 3
