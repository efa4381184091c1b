"""Passes that are made often: their steps are recorded, and then made without looking at a call.

Which functions of torch and which kernels a pass calls, in which order and with which numbers,
follows from its settings and from how its tensors lie. To find it out takes longer than short
kernels run. So a pass that was asked for often is recorded: each function of torch and each kernel
becomes a line of a Python function, which stands for the pass from then on. It makes the same calls
with the same arguments, and so gives the same bits, and forgets a tensor after its last use.

A pass is not recorded where it asks for numbers in a tensor, or where a tensor comes from elsewhere
than its arguments, its own steps and `same_in_all_calls`; nor is a record used in a CUDA graph.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..bounded_cache import BoundedCache
from ..layouts import layouts_of

__all__ = [
    "CALLS",
    "RecordedPasses",
    "Recorder",
    "active_recorder",
    "run_pass",
    "same_in_all_calls",
    "without_records",
]

#: A pass is recorded when it was made so often. To record it takes about as long as so many save.
CALLS = 16
#: Records that may be made before any has saved time.
ADVANCE = 64
_MOST = 1024  # passes of either kind

# What a pass may ask of a tensor: the answers follow from how it lies (of `data_ptr`, what
# `layouts_of` takes of it). So do public attributes, but for those of autograd.
_OF_AUTOGRAD = frozenset(
    {"grad", "grad_fn", "is_leaf", "output_nr", "requires_grad", "retains_grad"}
)
_OF_LAYOUT = frozenset({
    "__len__", "data_ptr", "dim", "element_size", "get_device", "is_contiguous",
    "is_floating_point", "numel", "size", "storage_offset", "stride",
})  # fmt: skip

# Functions that write to a tensor, and whose names do not end with one `_`.
_WRITING = frozenset({
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
})  # fmt: skip

# Functions whose results are as large as numbers in a tensor say.
_OF_ANY_SIZE = frozenset({
    "argwhere", "bincount", "masked_select", "nonzero", "repeat_interleave", "unique",
    "unique_consecutive",
})  # fmt: skip

T = TypeVar("T")

_of_thread = threading.local()


def active_recorder() -> Recorder | None:
    """The one at work in this thread, or None."""
    return getattr(_of_thread, "recorder", None)


def same_in_all_calls(x: T) -> T:
    """`x`, a tensor or a dataclass of tensors to which nobody writes."""
    recorder = active_recorder()
    if recorder is not None:
        recorder.take_constants(x)
    return x


class _Record:
    """What stands for a pass, and how often it did of late."""

    __slots__ = ("function", "uses")

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.function, self.uses = function, 0


class RecordedPasses:
    """Passes, by all that decides what they call.

    No more time is given to making records than those before have saved, but for a few in
    `ADVANCE`: while text is generated, each step has other lengths, and its layers alone are alike.
    """

    def __init__(self) -> None:
        self._calls: BoundedCache[int] = BoundedCache(_MOST)
        self._records: dict[Hashable, _Record] = {}
        self._saved = ADVANCE * CALLS  # in uses of a record

    def run(
        self,
        key: Hashable,
        tensors: Sequence[Tensor | None],
        make: Callable[[], T],
        *,
        lie_alike: bool = False,
    ) -> T:
        """What `make` gives.

        Args:
            key: all that decides what the pass calls, besides how the tensors lie.
            tensors: all that it reads; the first is not None. Nothing is written to them.
            make: makes the pass with them, on the current stream.
            lie_alike: whether all tensors that come with this key lie alike.
        """
        q = tensors[0]
        assert q is not None
        if q.is_cuda and torch.cuda.is_current_stream_capturing():
            return make()  # small tensors are made in another way then (`cached_tensors.py`)
        if not lie_alike:
            key = key, layouts_of(tensors)
        record = self._records.get(key)
        if record is None:
            return self._make(key, tensors, make)
        if record.function is None:
            return make()
        record.uses += 1
        self._saved += 1
        with torch.cuda.device_of(q):
            return record.function(*tensors)

    def _make(self, key: Hashable, tensors: Sequence[Tensor | None], make: Callable[[], T]) -> T:
        """Make a pass that is not recorded yet; record it where it was made often."""
        calls = self._calls.get(key) or 0
        there = [id(x) for x in tensors if x is not None]
        # Of a tensor that is there twice, a record would not tell which of the two is meant.
        if calls < CALLS or self._saved < CALLS or len(set(there)) < len(there):
            self._calls.put(key, calls + 1)
            return make()
        recorder = Recorder(tensors)
        with recorder:
            result = make()
        self._saved -= CALLS
        if len(self._records) >= _MOST:
            self._forget()
        self._records[key] = _Record(recorder.function(result))
        return result

    def _forget(self) -> None:
        """Keep the half that was of most use."""
        by_uses = sorted(self._records.items(), key=lambda item: item[1].uses, reverse=True)
        self._records = dict(by_uses[: _MOST // 2])
        for record in self._records.values():
            record.uses = 0


_passes: RecordedPasses | None = RecordedPasses()


def run_pass(
    key: Hashable, tensors: Sequence[Tensor | None], make: Callable[[], T], *,
    lie_alike: bool = False,
) -> T:  # fmt: skip
    """As `RecordedPasses.run`, with the records of this process."""
    return make() if _passes is None else _passes.run(key, tensors, make, lie_alike=lie_alike)


@contextmanager
def without_records() -> Iterator[None]:
    """Every pass is made anew: for programs that replace what passes call."""
    global _passes  # noqa: PLW0603
    before, _passes = _passes, None
    try:
        yield
    finally:
        _passes = before


class _Step(NamedTuple):
    """One line.

    Args:
        function: that is called.
        args: of it.
        kwargs: of it.
        result: the variable that it is given to, or None.
        used: the variables among its arguments.
    """

    function: str
    args: str
    kwargs: str
    result: str | None
    used: frozenset[str]


class Recorder(TorchFunctionMode):
    """Writes down what is called while it is entered.

    Args:
        tensors: the arguments of the function that is to be made, in order.
    """

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        super().__init__()
        self._variables = [f"t{number}" for number in range(len(tensors))]
        # By identity. A tensor that is gone leaves its memory when the pass itself does.
        self._places: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        for x, variable in zip(tensors, self._variables, strict=True):
            self._place(x, variable)
        self._parameters = tuple(self._variables)
        self._constants: dict[str, Any] = {}
        self._steps: list[_Step] = []
        self.obstacle: str | None = None

    def __enter__(self) -> Recorder:
        super().__enter__()
        self._before, _of_thread.recorder = active_recorder(), self
        return self

    def __exit__(self, *error: object) -> None:
        _of_thread.recorder = self._before
        super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Calls a function of torch, and writes it down."""
        kwargs = kwargs or {}
        given = [*_tensors((args, kwargs))]
        versions = [_version(x) for x in given]
        result = func(*args, **kwargs)
        name, made = func.__name__, [*_tensors(result)]
        writes = "out" in kwargs or name in _WRITING or re.fullmatch(r"[a-z].*_", name) is not None
        writes = writes or versions != [_version(x) for x in given]
        if not made and not writes:
            if not _asks_how_it_lies(func):
                self._stop(f"{name} asks for more than how a tensor lies")
        elif writes or any(self._place_of(x) is None for x in made):
            self._check_size(name, args)
            # Else a default, which may be another one in another call, says where.
            if "device" not in kwargs and not given:
                self._stop(f"{name} does not say on which device")
            self._write(func, args, kwargs, result)
        return result

    def _check_size(self, name: str, args: tuple[Any, ...]) -> None:
        """Stop where numbers in a tensor decide how large the result is."""
        by_mask = name in ("__getitem__", "__setitem__") and any(
            x.dtype in (torch.bool, torch.uint8) for x in _tensors(args[1:2])
        )
        if by_mask or name in _OF_ANY_SIZE or (name == "where" and len(args) == 1):
            self._stop(f"{name} goes by numbers of a tensor")

    def launching(self) -> AbstractContextManager[None]:
        """While a kernel is launched, which calls functions of torch on its own account."""
        return torch._C.DisableTorchFunction()

    def launched(self, run: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Write a kernel down.

        Args:
            run: launches it on the current stream.
            arguments: that it is given.
        """
        self._write(run, arguments, {}, None)

    def take_constants(self, x: Any) -> None:
        """Tensors, in a dataclass too, that are the same in all calls."""
        for tensor in _tensors(x):
            self._place(tensor, self._constant(tensor))

    def function(self, result: Any) -> Callable[..., Any] | None:
        """What stands for the pass, given what it returned; None where something was in the way."""
        returned, used = self._expression(result)
        if self.obstacle is not None:
            return None
        lines: list[str] = []
        gone: set[str] = set(used)
        for step in reversed(self._steps):
            # Last uses, as seen from the end.
            forgotten = sorted(step.used - gone)
            if step.result is not None and step.result not in gone:
                forgotten.append(step.result)
            gone |= step.used
            call = f"{step.function}({step.args}{step.kwargs})"
            line = call if step.result is None else f"{step.result} = {call}"
            lines += [f"del {', '.join(forgotten)}"] if forgotten else []
            lines.append(line)
        body = "\n    ".join([*reversed(lines), f"return {returned}"])
        source = f"def recorded({', '.join(self._parameters)}):\n    {body}\n"
        namespace = dict(self._constants)
        exec(compile(source, "<recorded pass>", "exec"), namespace)
        return namespace["recorded"]

    def _write(self, function: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        places = [self._expression(x) for x in args]
        named = {name: self._expression(x) for name, x in kwargs.items()}
        used = frozenset().union(*(u for _, u in (*places, *named.values())))
        variable = None
        new = [x for x in _tensors(result) if self._place_of(x) is None]
        if new:
            variable = f"t{len(self._variables)}"
            self._variables.append(variable)
            if isinstance(result, Tensor):
                self._place(result, variable)
            else:
                for number, x in enumerate(result):
                    self._place(x, f"{variable}[{number}]")
        self._steps.append(_Step(
            self._constant(function), "".join(f"{text}, " for text, _ in places),
            "".join(f"{name}={text}, " for name, (text, _) in named.items()), variable, used,
        ))  # fmt: skip

    def _expression(self, x: Any) -> tuple[str, frozenset[str]]:
        """`x` in the function's own words, and the variables that it names."""
        if isinstance(x, Tensor):
            place = self._place_of(x)
            if place is None:
                self._stop("a tensor comes from elsewhere")
                return "None", frozenset()
            variable = place.partition("[")[0]
            return place, frozenset({variable} - self._constants.keys())
        if not any(True for _ in _tensors(x)):
            return self._constant(x), frozenset()
        if not isinstance(x, (tuple, list, dict)):
            self._stop(f"a tensor in a {type(x).__name__}")
            return "None", frozenset()
        if isinstance(x, dict):
            parts = [self._expression(part) for part in x.values()]
            texts = [f"{name!r}: {text}" for name, (text, _) in zip(x, parts, strict=True)]
            text = f"{{{', '.join(texts)}}}"
        else:
            parts = [self._expression(part) for part in x]
            text = "".join(f"{text}, " for text, _ in parts)
            if isinstance(x, list):
                text = f"[{text}]"
            else:
                text = f"{'' if type(x) is tuple else self._constant(type(x))}({text})"
        return text, frozenset().union(*(used for _, used in parts))

    def _stop(self, why: str) -> None:
        self.obstacle = self.obstacle or why

    def _constant(self, x: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants[name] = x
        return name

    def _place(self, x: Any, place: str) -> None:
        if isinstance(x, Tensor):
            self._places[id(x)] = weakref.ref(x), place

    def _place_of(self, x: Tensor) -> str | None:
        reference, place = self._places.get(id(x), (None, None))
        return place if reference is not None and reference() is x else None


def _tensors(x: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists, dicts, slices and dataclasses."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, slice):
        yield from _tensors((x.start, x.stop, x.step))
    elif isinstance(x, dict):
        for part in x.values():
            yield from _tensors(part)
    elif isinstance(x, (tuple, list)):
        for part in x:
            yield from _tensors(part)
    elif is_dataclass(x) and not isinstance(x, type):
        for part in fields(x):
            yield from _tensors(getattr(x, part.name))


def _asks_how_it_lies(func: Any) -> bool:
    """Whether a function's result, no tensor, is the same for tensors that lie alike."""
    if func.__name__ != "__get__":
        return func.__name__ in _OF_LAYOUT
    attribute = getattr(func.__self__, "__name__", "_")
    return not attribute.startswith("_") and attribute not in _OF_AUTOGRAD


def _version(x: Tensor) -> int | None:
    """Changes when something is written to a tensor; None where torch does not count."""
    return None if x.is_inference() else x._version
