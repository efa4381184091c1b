"""The key-value cache: growing, beams, copies, and what an error undoes."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relpos
from relpos.adapters import RelativeGlobalAttention
from relpos.layers import DecoderBlock, KeyValueCache, MultiheadAttention
from relpos.layers.cache import rollback_on_error
from relpos.positions import Alibi, Grid, Shaw
from tests.factories import normal


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


def test_what_is_held_can_be_read():
    cache, x = KeyValueCache(), torch.randn(1, 2, 9, 4)
    assert cache.keys is None
    assert cache.values is None
    cache.append(x[:, :, :5], -x[:, :, :5])
    cache.append(x[:, :, 5:], -x[:, :, 5:], start=3)
    cache.crop(8)
    torch.testing.assert_close(cache.keys, x[:, :, 3:8])
    torch.testing.assert_close(cache.values, -x[:, :, 3:8])


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


def test_gradients_flow_to_the_tokens_of_a_call_and_not_to_those_before():
    past, new = normal(2, 1, 3, 2).requires_grad_(), normal(2, 1, 4, 2, seed=1).requires_grad_()
    cache = KeyValueCache()
    cache.append(past * 2, past * 3)
    assert cache.keys is not None
    assert not cache.keys.requires_grad
    keys, values = cache.append(new * 2, new.detach(), start=1)
    assert torch.equal(keys, torch.cat([2 * past[:, :, 1:], 2 * new], 2))
    assert torch.equal(values, torch.cat([3 * past[:, :, 1:], new], 2))
    (keys.sum() + values.sum()).backward()
    assert past.grad is None
    assert torch.equal(new.grad, torch.full_like(new, 2))
    assert not cache.keys.requires_grad
    with torch.no_grad():
        keys, _ = cache.append(new, new, start=1)
    assert not keys.requires_grad


def test_a_layer_that_trains_with_a_cache_has_the_gradients_of_recurrence():
    """Of Transformer-XL's: the tokens before are constants."""
    layer = MultiheadAttention(8, 2, position=Shaw(4, 3)).double()
    x = normal(2, 9, 8)
    cache = KeyValueCache()
    options = {"is_causal": True, "need_weights": False}
    with torch.no_grad():
        layer(x[:, :5], x[:, :5], x[:, :5], cache=cache, **options)
    found = layer(x[:, 5:], x[:, 5:], x[:, 5:], cache=cache, **options)[0].square().sum()
    gradients = torch.autograd.grad(found, list(layer.parameters()))
    # The same from the definition of the layer, with keys and values of the past held fast.
    weight, bias = layer.in_proj_weight, layer.in_proj_bias
    q, k, v = (x @ weight.T + bias).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    k, v = (torch.cat([y[:, :, :5].detach(), y[:, :, 5:]], 2) for y in (k, v))
    q, k, terms = layer.position(q[:, :, 5:], k)
    output = relpos.attention(q, k, v, terms, causal=True, backend="reference")
    wanted = layer.out_proj(output.transpose(1, 2).flatten(2)).square().sum()
    for one, other in zip(
        gradients, torch.autograd.grad(wanted, list(layer.parameters())), strict=True
    ):
        assert (one - other).abs().max() <= 1e-12 * other.abs().max().clamp(min=1)


def _append_and_fail(cache: KeyValueCache, x: torch.Tensor) -> None:
    cache.append(0 * x, x)
    raise ZeroDivisionError


@pytest.mark.parametrize("first", ["copy", "original"])
def test_a_copy_goes_on_by_itself(first: str):
    x, others = normal(1, 2, 20, 4), normal(1, 2, 3, 4, seed=1)
    cache = KeyValueCache()
    for token in x[:, :, :5].split(1, 2):
        cache.append(token, -token)  # there is room left
    copied = copy.copy(cache)
    cache.crop(4)
    grown = [(cache, x[:, :, 5:8], 4), (copied, others, 5)]
    for one, new, _ in grown if first == "original" else reversed(grown):
        with pytest.raises(ZeroDivisionError), rollback_on_error(one):
            _append_and_fail(one, new)
        one.append(new, -new)
        one.append(new, -new)
    for one, new, held in grown:
        expected = torch.cat([x[:, :, :held], new, new], 2)
        assert torch.equal(one.keys, expected)
        assert torch.equal(one.values, -expected)
    address = cache.keys.data_ptr()
    cache.crop(5)
    cache.append(x[:, :, :1], x[:, :, :1])
    assert cache.keys.data_ptr() == address  # its own again


def test_a_cache_filled_in_inference_mode_goes_on_outside_it():
    x = normal(1, 2, 5, 4)
    cache = KeyValueCache()
    with torch.inference_mode():
        cache.append(x[:, :, :2], x[:, :, :2])
        cache.append(x[:, :, 2:3], x[:, :, 2:3])
    cache.append(x[:, :, 3:4], x[:, :, 3:4])
    keys, values = cache.append(x[:, :, 4:], x[:, :, 4:])
    assert torch.equal(keys, x)
    assert torch.equal(values, x)


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


def test_tokens_that_are_cropped_are_as_never_appended():
    k, v = normal(2, 3, 9, 4), normal(2, 3, 9, 5, seed=1)
    cache = KeyValueCache()
    cache.append(k[:, :, :3], v[:, :, :3])
    for rejected in (0, 4, 1):
        cache.append(k.flip(2)[:, :, :rejected], v.flip(2)[:, :, :rejected])
        cache.crop(3)
        assert cache.length == 3
    keys, values = cache.append(k[:, :, 3:], v[:, :, 3:])
    assert torch.equal(keys, k)
    assert torch.equal(values, v)
    cache.crop(0)
    keys, _ = cache.append(k, v)
    assert torch.equal(keys, k)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("length", "said"), [(4, "at most 3, the number"), (-1, "an integer >= 0"), (1.5, "an integer")]
)
def test_a_length_that_cannot_be_cropped_to_is_named(length, said):
    cache = KeyValueCache()
    cache.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    with pytest.raises(ValueError, match=rf"^KeyValueCache\.crop: length must be {said}"):
        cache.crop(length)
    assert cache.length == 3


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
            "k must be torch.float32 on cpu as the tokens before are, got torch.float16",
        ),
    ],
)
def test_tokens_that_do_not_continue_are_named_and_not_kept(k, v, words):
    cache = KeyValueCache()
    cache.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    with pytest.raises(relpos.ShapeError, match=rf"KeyValueCache.append: {words}"):
        cache.append(k, v)
    assert cache.length == 3


def _fail_after(cache, *appended):
    with rollback_on_error(None, cache):
        for x in appended:
            cache.append(x, x)
        raise ZeroDivisionError


@pytest.mark.parametrize("held", [0, 3, 4])
def test_an_error_undoes_what_was_appended(held):
    cache, x = KeyValueCache(), normal(2, 1, 9, 4)
    for n in range(held):
        cache.append(x[:, :, n : n + 1], x[:, :, n : n + 1])
    with pytest.raises(ZeroDivisionError):
        _fail_after(cache, x[:, :, :1], x)
    assert cache.length == held
    keys, values = cache.append(x[:, :, held:], x[:, :, held:])
    assert torch.equal(keys, x)
    assert torch.equal(values, x)


def test_an_error_undoes_a_reset_and_a_first_call_of_any_shape():
    cache, x = KeyValueCache(), normal(2, 1, 3, 4)
    cache.append(x, x)

    def replace():
        with rollback_on_error(cache):
            cache.reset()
            _fail_after(cache, x[:1])

    with pytest.raises(ZeroDivisionError):
        replace()
    assert torch.equal(cache.append(x[:, :, :1], x[:, :, :1])[0][:, :, :3], x)


def test_without_an_error_nothing_is_undone():
    cache = KeyValueCache()
    with rollback_on_error(cache):
        cache.append(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    assert cache.length == 3


def test_an_append_without_memory_left_is_as_none(monkeypatch):
    cache, k = KeyValueCache(), torch.zeros(1, 1, 3, 2)
    cache.append(k, k)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(KeyValueCache, "_with_room", full)
    with pytest.raises(MemoryError):
        cache.append(k, k)
    assert cache.length == 3


class _Raises(torch.nn.Module):
    """A scheme that refuses from its second call on."""

    calls = 0

    def forward(self, q, k):
        self.calls += 1
        if self.calls > 1:
            raise ZeroDivisionError
        return q, k, relpos.Terms()


_WIDE = torch.float64
# What goes wrong behind the cache, and in which call.
REFUSED = {
    "a scheme that raises": (_Raises, 1, ZeroDivisionError),
    "rows of another dtype": (lambda: Shaw(4, 3, dtype=_WIDE), 0, relpos.ShapeError),
    "heads that do not fit": (lambda: Alibi(8), 0, relpos.ShapeError),
    "a grid that is too small": (lambda: Grid(4, (3, 3)), 0, ValueError),
}
each_refused = pytest.mark.parametrize(
    ("position", "good", "error"), REFUSED.values(), ids=list(REFUSED)
)


@pytest.mark.no_typecheck
@each_refused
def test_a_refused_attention_leaves_the_cache_as_it_was(position, good, error):
    layer, cache = MultiheadAttention(16, 4, position=position()), KeyValueCache()
    x = normal(2, 7, 16, dtype=torch.float32)
    for _ in range(good):
        layer(x, x, x, is_causal=True, cache=cache)
    with pytest.raises(error):
        layer(x, x, x, is_causal=True, cache=cache)
    assert cache.length == 7 * good
    layer.position = None
    layer(x, x, x, is_causal=True, cache=cache)
    assert cache.length == 7 * (good + 1)


@pytest.mark.no_typecheck
@each_refused
def test_a_cross_attention_that_is_refused_leaves_both_caches_as_they_were(position, good, error):
    cross = MultiheadAttention(16, 4, position=position())
    block = DecoderBlock(MultiheadAttention(16, 4, position=Alibi(4)), cross=cross)
    x, memory = normal(2, 3, 16, dtype=torch.float32), normal(2, 7, 16, dtype=torch.float32)
    cache, memory_cache = KeyValueCache(), KeyValueCache()
    for _ in range(good):
        block(x, cache, memory=memory, memory_cache=memory_cache)
    with pytest.raises(error):
        block(x, cache, memory=memory, memory_cache=memory_cache)
    assert (cache.length, memory_cache.length) == (3 * good, 7 * good)


@pytest.mark.no_typecheck
def test_a_memory_of_a_wrong_dtype_leaves_both_caches_as_they_were():
    block = DecoderBlock(MultiheadAttention(16, 4), cross=MultiheadAttention(16, 4))
    x, memory = normal(2, 3, 16, dtype=torch.float32), normal(2, 7, 16, dtype=torch.float32)
    cache, memory_cache = KeyValueCache(), KeyValueCache()
    with pytest.raises(relpos.ShapeError, match="key_padding_mask must be boolean"):
        block(
            x, cache, memory=memory, memory_cache=memory_cache,
            memory_key_padding_mask=torch.zeros(2, 7, dtype=torch.int64),
        )  # fmt: skip
    with pytest.raises(RuntimeError, match="dtype"):
        block(x, cache, memory=memory.double(), memory_cache=memory_cache)
    assert (cache.length, memory_cache.length) == (0, 0)


def test_an_mlp_that_raises_leaves_both_caches_as_they_were():
    block = DecoderBlock(MultiheadAttention(16, 4), cross=MultiheadAttention(16, 4))
    block.mlp[1].register_forward_hook(lambda *_: 1 / 0)
    x, memory = normal(2, 3, 16, dtype=torch.float32), normal(2, 7, 16, dtype=torch.float32)
    cache, memory_cache = KeyValueCache(), KeyValueCache()
    with pytest.raises(ZeroDivisionError):
        block(x, cache, memory=memory, memory_cache=memory_cache)
    assert (cache.length, memory_cache.length) == (0, 0)


@pytest.mark.no_typecheck
def test_relative_global_attention_that_is_refused_leaves_the_cache_as_it_was():
    layer, cache = RelativeGlobalAttention(16, 4, max_len=7), KeyValueCache()
    layer.Er.data = layer.Er.data.double()
    with pytest.raises(relpos.ShapeError):
        layer(normal(2, 7, 16, dtype=torch.float32), cache=cache)
    assert cache.length == 0


@pytest.mark.no_typecheck
@pytest.mark.parametrize("cache", [{}, "c", KeyValueCache])
def test_what_is_no_cache_is_named(cache):
    layer, x = MultiheadAttention(8, 2), torch.zeros(1, 3, 8)
    with pytest.raises(TypeError, match="MultiheadAttention: cache must be a KeyValueCache or"):
        layer(x, x, x, cache=cache)
    with pytest.raises(TypeError, match="DecoderBlock: cache must be a KeyValueCache or None, got"):
        DecoderBlock(layer)(x, cache)


@pytest.mark.parametrize("index", [[2], [0, -1]])
def test_batch_entries_that_there_are_not_are_named(index: list[int]):
    cache = KeyValueCache()
    cache.append(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4))
    with pytest.raises(ValueError, match=r"index must be numbers of batch entries, 0..1, got \["):
        cache.reorder(torch.tensor(index))
    cache.reorder(torch.tensor([1, 0]))


def test_a_cache_is_one_layers():
    x, cache = normal(1, 4, 8), KeyValueCache()
    first, second = (MultiheadAttention(8, 2).double().eval() for _ in range(2))

    def attend(layer: MultiheadAttention, cache: KeyValueCache) -> None:
        layer(x, x, x, need_weights=False, cache=cache)

    attend(first, cache)
    attend(first, cache)
    with pytest.raises(ValueError, match="cache must be one layer's, got one with 8 tokens of ano"):
        attend(second, cache)
    assert cache.length == 8
    model, copied = copy.deepcopy((first, cache))
    attend(model, copied)
    attend(first, pickle.loads(pickle.dumps(cache)))
    attend(model, copy.copy(cache))
    cache.reset()
    attend(second, cache)
    del second  # nobody's, then
    attend(first, cache)
    assert cache.length == 8
