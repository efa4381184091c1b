"""Steps of decoding as a program of their own, given and giving the keys and values so far."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch.export import Dim
from torch.testing import assert_close

from relpos.layers import DecoderBlock, KeyValueCache, MultiheadAttention
from relpos.positions import Bidirectional, Rotary, Shaw, T5Bias
from tests.ecosystem.schemes import SUBJECTS, Attention, made

pytestmark = [
    pytest.mark.no_typecheck,
    # The exporters' own, from the code that they trace and from their tables of operators.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:# The axis name. past will not be used:UserWarning"),
]

WIDTH, HEADS, LENGTH = 16, 2, 30
LINES = [
    name
    for name, subject in SUBJECTS.items()
    if isinstance(module := made(name), Attention)
    if module.at_input is None and subject.dynamic is not None
]
PAST = {2: Dim("past", min=0, max=4096)}
DYNAMIC = {"x": {1: Dim("new", min=1, max=4096)}, "keys": PAST, "values": PAST}


class Step(nn.Module):
    """A layer, given the tokens' keys and values so far; the new ones are among what it gives."""

    def __init__(self, layer: MultiheadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cache = KeyValueCache()
        cache.append(keys, values)
        y, _ = self.layer(x, x, x, is_causal=True, need_weights=False, cache=cache)
        assert cache.keys is not None
        assert cache.values is not None
        return y, cache.keys, cache.values


def step_of(name: str) -> Step:
    module = made(name)
    assert isinstance(module, Attention)
    return Step(module.attention).eval()


def inputs(length: int, past: int, kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    held = (2, kv_heads, past, WIDTH // HEADS)
    return torch.randn(2, length, WIDTH), torch.randn(held), torch.randn(held)


def exported(step: Step, **options) -> torch.export.ExportedProgram:
    given = inputs(3, 12, step.layer.num_kv_heads)
    with torch.no_grad():
        return torch.export.export(step, given, dynamic_shapes=DYNAMIC, **options)


def assert_decodes(run, step: Step, held: int | None = None) -> None:
    """A prompt, chunks and single tokens in turn give what the layer gives with a cache.

    Args:
        run: the program.
        step: that it was made of.
        held: of how many tokens it is given the keys and values at most; None: of all.
    """
    x = torch.randn(2, LENGTH, WIDTH)
    _, keys, values = inputs(1, 0, step.layer.num_kv_heads)
    cache = KeyValueCache()
    for tokens in x.split([5, 1, 1, 4, 1, 1, 7, 1, 9], 1):
        y, keys, values = run(tokens, keys, values)
        with torch.no_grad():
            want, _ = step.layer(
                tokens, tokens, tokens, is_causal=True, need_weights=False, cache=cache
            )
        assert_close(y, want, rtol=1e-4, atol=1e-5)
        if held is not None:
            keys, values = keys[:, :, -held:], values[:, :, -held:]
    assert keys.shape[2] == (LENGTH if held is None else held)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.costly(4)
def test_one_program_takes_a_prompt_chunks_and_single_tokens(name: str):
    step = step_of(name)
    assert_decodes(exported(step).module(), step)


def test_a_strict_program_does_so_too():
    step = step_of("Shaw")
    assert_decodes(exported(step, strict=True).module(), step)


def test_heads_may_share_keys():
    layer = MultiheadAttention(WIDTH, HEADS, position=Rotary(WIDTH // HEADS), num_kv_heads=1)
    step = Step(layer).eval()
    assert_decodes(exported(step).module(), step)


@pytest.mark.parametrize("held", [None, 6])
@pytest.mark.parametrize(
    "position", [Shaw(WIDTH // HEADS, 3), Rotary(WIDTH // HEADS), T5Bias(HEADS)],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_what_lies_behind_a_window_may_be_left_out(position: nn.Module, held: int | None):
    """A program drops nothing that it is given: its caller may, where offsets alone count."""
    layer = MultiheadAttention(WIDTH, HEADS, position=position, window=(6, 0))
    step = Step(layer).eval()
    assert_decodes(exported(step).module(), step, held)


class Keeper(nn.Module):
    """It keeps a cache, which a program would have with the tokens of the example."""

    def __init__(self, layer: MultiheadAttention) -> None:
        super().__init__()
        self.layer, self.cache = layer, KeyValueCache()

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layer(x, x, x, is_causal=True, need_weights=False, cache=self.cache)
        return y


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("tokens", [0, 5])
def test_a_cache_made_before_is_refused(tokens: int, strict: bool):
    keeper = Keeper(step_of("Shaw").layer).eval()
    with torch.no_grad():
        keeper(torch.randn(2, tokens, WIDTH))
        with pytest.raises(
            (ValueError, Unsupported),
            match=rf"a cache must be made by the program, .*before, of {tokens} tokens",
        ):
            torch.export.export(keeper, (torch.randn(2, 3, WIDTH),), strict=strict)
        # It goes on as before.
        assert keeper.cache.length == tokens
        assert keeper(torch.randn(2, 3, WIDTH)).shape == (2, 3, WIDTH)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.costly(1, of="onnxruntime")
def test_onnxruntime_decodes_with_the_same_numbers(name: str, tmp_path: Path):
    step, path = step_of(name), tmp_path / "step.onnx"
    with torch.no_grad():
        torch.onnx.export(
            step, inputs(3, 12), path, dynamo=True, dynamic_shapes=DYNAMIC, verbose=False
        )
    session = onnxruntime.InferenceSession(path)
    names = [x.name for x in session.get_inputs()]

    def run(*given: Tensor) -> list[Tensor]:
        fed = {name: x.numpy() for name, x in zip(names, given, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, fed)]

    assert_decodes(run, step)


class PaddedStep(Step):
    """The same with a mask of padding, of all tokens."""

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        cache = KeyValueCache()
        cache.append(keys, values)
        y, _ = self.layer(
            x, x, x, is_causal=True, need_weights=False, cache=cache, key_padding_mask=padding
        )
        return y


def test_padding_is_masked_at_any_length():
    step = PaddedStep(step_of("Shaw").layer).eval()

    def given(length: int, past: int) -> tuple[Tensor, ...]:
        padding = torch.arange(past + length) < torch.tensor([[0], [min(past, 3)]])
        return (*inputs(length, past), padding)

    shapes = {**DYNAMIC, "padding": {1: Dim("all", min=1, max=9999)}}
    with torch.no_grad():
        program = torch.export.export(step, given(3, 12), dynamic_shapes=shapes).module()
        for length, past in ((3, 12), (7, 0), (1, 1), (1, 40)):
            some = given(length, past)
            assert_close(program(*some), step(*some), rtol=1e-4, atol=1e-5)


class WithMemory(nn.Module):
    """A decoder's block: its memory's keys and values are made before, and given to each step."""

    def __init__(self) -> None:
        super().__init__()
        self.block = DecoderBlock(
            MultiheadAttention(WIDTH, HEADS, position=Shaw(WIDTH // HEADS, (3, 0))),
            cross=MultiheadAttention(WIDTH, HEADS, position=Bidirectional(WIDTH // HEADS, LENGTH)),
        )

    def forward(
        self,
        x: Tensor,
        held: tuple[Tensor, Tensor],
        memory: Tensor,
        of_memory: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
        cache, memory_cache = KeyValueCache(), KeyValueCache()
        cache.append(*held)
        memory_cache.append(*of_memory)
        y = self.block(x, cache, memory=memory, memory_cache=memory_cache)
        return y, (cache.keys, cache.values)


def test_a_decoder_reads_the_keys_of_its_memory():
    module = WithMemory().eval()
    x, memory = torch.randn(2, LENGTH, WIDTH), torch.randn(2, 8, WIDTH)
    memory_cache = KeyValueCache()
    given, *held = inputs(3, 12)
    of_length = {1: Dim("memory", min=2)}, {2: Dim("memory", min=2)}
    with torch.no_grad():
        whole = module.block(x, KeyValueCache(), memory=memory, memory_cache=memory_cache)
        program = torch.export.export(
            module,
            (given, tuple(held), torch.randn(2, 5, WIDTH), tuple(inputs(1, 5)[1:])),
            dynamic_shapes={
                "x": DYNAMIC["x"],
                "held": (PAST, PAST),
                "memory": of_length[0],
                "of_memory": (of_length[1], of_length[1]),
            },
        )
    _, *past = inputs(1, 0)
    found, past = [], tuple(past)
    for tokens in x.split([11, *[1] * 19], 1):
        y, past = program.module()(tokens, past, memory, (memory_cache.keys, memory_cache.values))
        found.append(y)
    assert_close(torch.cat(found, 1), whole, rtol=1e-4, atol=1e-5)
