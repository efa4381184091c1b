"""The cache of a layer with a window: it drops what no later query sees, and nothing else."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import relpos
from relpos.adapters import RelativeGlobalAttention
from relpos.layers import DecoderBlock, KeyValueCache, MultiheadAttention
from relpos.positions import (
    AbsoluteKeys,
    Compose,
    GatedBias,
    Huang,
    Rotary,
    Shaw,
    T5Bias,
    TransformerXL,
)
from tests.factories import normal

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
LENGTH = 29


class Unknown(nn.Module):
    """A user's own scheme, which says nothing of itself and counts keys from the first."""

    def forward(self, q, k):
        return q, k + 0.1 * torch.arange(k.shape[2], dtype=k.dtype)[:, None], relpos.Terms()


ROLLED = {
    "none": lambda: None,
    "shaw": lambda: Shaw(4, 3, 4),
    "huang": lambda: Huang(4, 40),
    "t5": lambda: T5Bias(4, 8, 20),
    "gated": lambda: GatedBias(T5Bias(4, 8, 20), 4, 4),
    "transformer xl": lambda: TransformerXL(4, 4),
    "rotary": lambda: Rotary(4),
    "compose": lambda: Compose(Shaw(4, 3, keys=False), Rotary(4)),
}
KEPT = {
    "absolute keys": lambda: AbsoluteKeys(4, 40),
    "rotary, dynamic": lambda: Rotary(4, scaling=DYNAMIC),
    "unknown": Unknown,
    "compose": lambda: Compose(AbsoluteKeys(4, 40), T5Bias(4, 8, 20)),
    "gated unknown": lambda: GatedBias(Bias(), 4, 4),
}


class Bias(nn.Module):
    """A bias that says nothing of itself."""

    def forward(self, q, k):
        return q, k, relpos.Terms(bias=relpos.OffsetTable(torch.ones(1, 1).double(), 0, "zero"))


def layer_of(position=None, window=(6, 0), **arguments):
    torch.manual_seed(0)
    layer = MultiheadAttention(
        16, 4, position=position, window=window, **{"num_kv_heads": 2} | arguments
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def decoded(layer, x, cuts, cache=None, **arguments):
    """Outputs and weights of `x` read in chunks that end at `cuts`; masks number all keys."""
    cache, outputs, weights = cache or KeyValueCache(), [], []
    for part in x.tensor_split(sorted(cuts), dim=1):
        end = cache.length + part.shape[1]
        given = {name: cut(end, part.shape[1]) for name, cut in arguments.items()}
        with torch.no_grad():
            output, weight = layer(
                part, part, part, cache=cache, average_attn_weights=False, **given
            )
        outputs.append(output)
        row = torch.zeros(2, 4, part.shape[1], x.shape[1], dtype=x.dtype)
        row[..., cache.start : end] = weight
        weights.append(row)
    return torch.cat(outputs, 1), torch.cat(weights, 2)


WINDOWS = [(6, 0), (0, 0), (1, 2), (6, None), (None, 0), (None, 3), (40, 0)]
cuts_of_chunks = st.sets(st.integers(1, LENGTH - 1), max_size=9)


@pytest.mark.parametrize("name", ROLLED)
@given(
    cuts=cuts_of_chunks,
    window=st.sampled_from(WINDOWS),
    causal=st.booleans(),
    softcap=st.sampled_from([None, 1.5]),
    masked=st.booleans(),
    documents=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_chunks_of_any_size_equal_one_pass(name, cuts, window, causal, softcap, masked, documents):
    layer, x = layer_of(ROLLED[name](), window, softcap=softcap), normal(2, LENGTH, 16)
    # What a chunk does not hold yet its queries cannot see.
    ends = torch.tensor([*sorted(cuts), LENGTH])
    own = ends[torch.searchsorted(ends, torch.arange(LENGTH), right=True)]
    ranges = torch.stack([torch.arange(LENGTH) // 5, own], -1)[None]
    pads = normal(2, LENGTH, seed=3)
    pads[0, :4] = pads[1, 9:14] = -torch.inf
    packed = torch.arange(LENGTH)[None] // 17
    whole = {"key_ranges": ranges}
    chunks = {"key_ranges": lambda end, i: ranges[:, end - i : end].to(torch.int16)}
    if masked:
        whole["key_padding_mask"] = pads
        chunks["key_padding_mask"] = lambda end, i: pads[:, :end]
    if documents:
        whole["documents"] = packed
        chunks["documents"] = lambda end, i: packed[:, :end]
    want, weights = layer(x, x, x, is_causal=causal, average_attn_weights=False, **whole)
    cache = KeyValueCache()
    found = decoded(layer, x, cuts, cache, is_causal=lambda *_: causal, **chunks)
    assert_close(found, (want, weights))
    last = LENGTH - max(cuts, default=0)
    first = 0 if window[0] is None else max(0, LENGTH - last - window[0])
    assert (cache.start, cache.length) == (first, LENGTH)


@pytest.mark.parametrize("name", KEPT)
@given(cuts=cuts_of_chunks)
@settings(max_examples=5, deadline=None)
def test_what_depends_on_positions_keeps_all_keys_and_is_right(name, cuts):
    layer, x, cache = layer_of(KEPT[name]()), normal(2, LENGTH, 16), KeyValueCache()
    counted = getattr(layer.position, "scaling", None)
    assert not getattr(layer.position, "shift_invariant", False)
    found, _ = decoded(layer, x, cuts, cache, is_causal=lambda *_: True)
    assert (cache.start, cache.length) == (0, LENGTH)
    if counted is None:
        assert_close(found, layer(x, x, x, is_causal=True)[0])
    else:
        # Its frequencies are those of as many tokens as a call has, in a full pass too.
        last = LENGTH - max(cuts, default=0)
        assert_close(found[:, -last:], layer(x, x, x, is_causal=True)[0][:, -last:])


def attn_mask_cut(mask):
    return lambda end, i: mask[..., end - i : end, :end]


@pytest.mark.parametrize("heads", [1, 8])
def test_a_mask_of_pairs_numbers_all_keys(heads):
    layer, x = layer_of(Shaw(4, 3)), normal(2, LENGTH, 16)
    mask = normal(heads, LENGTH, LENGTH, seed=4)[0 if heads == 1 else slice(None)]
    want = layer(x, x, x, attn_mask=mask, is_causal=True)[0]
    cut = attn_mask_cut(mask)
    assert_close(decoded(layer, x, {11, 12, 20}, attn_mask=cut, is_causal=lambda *_: True)[0], want)


def test_one_sequence_without_a_batch_rolls():
    layer, x, cache = layer_of(Shaw(4, 3)), normal(LENGTH, 16), KeyValueCache()
    ranges = torch.stack([torch.zeros(LENGTH), torch.arange(1, LENGTH + 1)], -1).long()
    ranges[:, 0] = torch.arange(LENGTH) - 2
    found = [
        layer(x[n : n + 1], x[n : n + 1], x[n : n + 1], cache=cache, key_ranges=ranges[n : n + 1])
        for n in range(LENGTH)
    ]
    want = layer(x, x, x, key_ranges=ranges)[0]
    assert_close(torch.cat([output for output, _ in found]), want)
    assert cache.start == LENGTH - 1 - 6


def test_the_last_queries_of_a_prompt_alone_leave_what_later_ones_see():
    layer, x, cache = layer_of(Rotary(4)), normal(2, LENGTH, 16), KeyValueCache()
    want = layer(x, x, x, is_causal=True)[0]
    prompt, rest = x[:, :20], x[:, 20:]
    last = layer(prompt[:, -1:], prompt, prompt, is_causal=True, cache=cache)[0]
    assert_close(last, want[:, 19:20])
    assert_close(layer(rest, rest, rest, is_causal=True, cache=cache)[0], want[:, 20:])


def storage(cache):
    """Tokens for which there is memory."""
    return max(x.untyped_storage().nbytes() // x[:, :, :1].nbytes for x in cache._buffers)


@pytest.mark.no_typecheck
def test_thousands_of_tokens_take_the_memory_of_the_window_and_few_copies():
    window, count = 64, 2000
    layer, cache = layer_of(Huang(4, 64), (window - 1, 0)), KeyValueCache()
    x, copies, before = normal(1, count, 16), 0, None
    with torch.no_grad():
        for n in range(count):
            token = x[:, n : n + 1]
            layer(token, token, token, need_weights=False, is_causal=True, cache=cache)
            copies += before is not None and cache._buffers[0] is not before
            before = cache._buffers[0]
            assert cache.length - cache.start <= window
            assert storage(cache) <= 2 * window
    # Each copy is of one window, and makes room for another.
    assert copies <= count / (window - 1) + 8


def test_a_long_prompt_is_given_back_with_the_next_token():
    layer, cache = layer_of(window=(5, 0)), KeyValueCache()
    for n in (500, 1, 300, 1):
        x = normal(1, n, 16)
        layer(x, x, x, need_weights=False, is_causal=True, cache=cache)
        assert cache.length - cache.start <= n + 5
        assert storage(cache) <= max(n + 5, 10)


def test_beams_copies_and_resets_of_a_rolled_cache():
    layer, cache = layer_of(Shaw(4, 3)), KeyValueCache()
    x = normal(3, LENGTH, 16)
    order = torch.tensor([2, 0, 0, 1])
    beams = torch.cat([x[order, :20], normal(4, LENGTH - 20, 16, seed=5)], 1)

    def step(part, cache):
        return layer(part, part, part, need_weights=False, is_causal=True, cache=cache)[0]

    for part in x[:, :20].split(3, 1):
        step(part, cache)
    cache.reorder(order)
    other = copy.deepcopy(cache)
    want = layer(beams, beams, beams, is_causal=True)[0]
    for rolled in (cache, other):
        assert rolled.start > 0
        found = [step(part, rolled) for part in beams[:, 20:].split(2, 1)]
        assert_close(torch.cat(found, 1), want[:, 20:])
    cache.reset()
    assert (cache.start, cache.length) == (0, 0)
    assert_close(step(beams, cache), want)


def test_what_is_rejected_of_several_tokens_at_once_leaves_what_others_see():
    layer, cache, x = layer_of(Shaw(4, 3)), KeyValueCache(), normal(2, LENGTH, 16)
    want, n = layer(x, x, x, is_causal=True)[0], 0
    for guessed, kept in ((9, 9), (5, 1), (4, 0), (4, 4), (6, 3), (1, 1), (7, 2)):
        part = torch.cat([x[:, n : n + kept], x[:, : guessed - kept]], 1)
        found = layer(part, part, part, is_causal=True, cache=cache)[0]
        assert_close(found[:, :kept], want[:, n : n + kept])
        n += kept
        cache.crop(n)
    assert 0 < cache.start < n
    with pytest.raises(
        ValueError, match=rf"length must be at least {n - 2}, as a layer with a win"
    ):
        cache.crop(n - 3)
    cache.crop(n - 2)
    part = x[:, n - 2 :]
    assert_close(layer(part, part, part, is_causal=True, cache=cache)[0], want[:, n - 2 :])


def test_a_rolled_cache_of_inference_mode_goes_on_outside_it():
    layer, cache, x = layer_of(), KeyValueCache(), normal(2, LENGTH, 16)
    with torch.inference_mode():
        decoded(layer, x[:, :20], {3, 9, 15}, cache, is_causal=lambda *_: True)
    with torch.no_grad():
        parts = [layer(y, y, y, is_causal=True, cache=cache)[0] for y in x[:, 20:].split(2, 1)]
    assert_close(torch.cat(parts, 1), layer(x, x, x, is_causal=True)[0][:, 20:])


@pytest.mark.parametrize(
    "other",
    [
        lambda: layer_of(window=(8, 0)),
        lambda: layer_of(window=None),
        lambda: layer_of(AbsoluteKeys(4, 9)),
    ],
    ids=["a wider window", "no window", "absolute keys"],
)
def test_a_cache_that_dropped_what_another_layer_sees_is_refused(other):
    cache, x, layer = KeyValueCache(), normal(2, 1, 16), other()
    for _ in range(20):
        layer_of()(x, x, x, is_causal=True, cache=cache)
    with pytest.raises(ValueError, match=r"start must be at least 13, as a layer with a window"):
        layer(x, x, x, is_causal=True, cache=cache)
    assert (cache.start, cache.length) == (13, 20)


def test_a_layer_that_knows_no_window_refuses_a_rolled_cache():
    cache, x, layer = KeyValueCache(), normal(2, 9, 16), layer_of(num_kv_heads=4)
    for _ in range(2):
        layer(x, x, x, is_causal=True, cache=cache)
    with pytest.raises(ValueError, match="cache must be one layer's, got one with 18 tokens of an"):
        RelativeGlobalAttention(16, 4, max_len=7).double()(x, cache=cache)
    copied = copy.copy(cache)  # which no layer has called its own
    with pytest.raises(ValueError, match="start must be at least 3, as a layer with a window"):
        RelativeGlobalAttention(16, 4, max_len=7).double()(x, cache=copied)
    with pytest.raises(ValueError, match="start must be at least 3"):
        layer(x, x, x, cache=cache, query_start=0)
    assert (cache.start, cache.length) == (3, 18)


def test_a_start_that_has_not_come_yet_is_refused():
    cache, x = KeyValueCache(), torch.zeros(1, 1, 3, 2)
    with pytest.raises(ValueError, match="start must be at most 0, the position of the next token"):
        cache.append(x, x, start=1)
    assert cache.length == 0


def test_an_error_brings_back_what_was_dropped():
    layer, cache, x = layer_of(Shaw(4, 3)), KeyValueCache(), normal(2, LENGTH, 16)
    want = layer(x, x, x, is_causal=True)[0]
    block = DecoderBlock(layer, cross=None).double().eval()
    for part in x[:, :20].split(2, 1):
        layer(part, part, part, is_causal=True, cache=cache)
    before = (cache.start, cache.length)
    hook = block.mlp[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        block(x[:, 20:], cache)
    hook.remove()
    assert (cache.start, cache.length) == before
    rest = x[:, 20:]
    assert_close(layer(rest, rest, rest, is_causal=True, cache=cache)[0], want[:, 20:])


def test_ranges_without_limits_show_a_rolled_cache_what_its_window_does():
    layer, x = layer_of(), normal(2, LENGTH, 16)
    limits = torch.iinfo(torch.int64)
    everything = torch.tensor([limits.min, limits.max]).expand(1, 1, 2)
    bare, ranged = KeyValueCache(), KeyValueCache()
    with torch.no_grad():
        for y in x.split(1, 1):
            wanted, _ = layer(y, y, y, is_causal=True, cache=bare)
            found, _ = layer(y, y, y, is_causal=True, cache=ranged, key_ranges=everything)
            assert_close(found, wanted)
    assert ranged.start > 0


def test_across_a_memory_nothing_is_dropped():
    cross = layer_of(Shaw(4, 3), (2, 1))
    block = DecoderBlock(layer_of(Shaw(4, 3)), cross=cross).double().eval()
    x, memory = normal(2, LENGTH, 16), normal(2, 31, 16, seed=1)
    cache, memory_cache, found = KeyValueCache(), KeyValueCache(), []
    with torch.no_grad():
        for part in x.split(3, 1):
            found.append(block(part, cache, memory=memory, memory_cache=memory_cache))
        assert_close(torch.cat(found, 1), block(x, memory=memory))
    assert (cache.start, memory_cache.start) == (LENGTH - 2 - 6, 0)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("documents", torch.zeros(2, 7), r"documents must be \(b, j\) with b in \(1, 2\), j=21"),
        ("key_ranges", torch.zeros(1, 2, 2).long(), r"key_ranges must be \(b, i, 2\) .* i=1, got"),
        ("key_ranges", torch.zeros(1, 1, 2), "key_ranges must be .*integer"),
        ("key_padding_mask", torch.zeros(2, 7), r"key_padding_mask must be .*\(2, 21\)"),
    ],
)
def test_what_does_not_number_all_keys_is_named_and_nothing_is_dropped(name, wrong, words):
    layer, cache, x = layer_of(), KeyValueCache(), normal(2, 1, 16)
    for _ in range(20):
        layer(x, x, x, is_causal=True, cache=cache)
    with pytest.raises(relpos.ShapeError, match=f"MultiheadAttention: {words}"):
        layer(x, x, x, is_causal=True, cache=cache, **{name: wrong})
    assert (cache.start, cache.length) == (13, 20)
