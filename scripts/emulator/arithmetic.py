"""Instructions that each thread runs on its own registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UnsupportedError
from .machine import Lanes, Machine, Run, dtype_of
from .ptx import Instruction, Register

__all__ = ["BUILDERS", "assign", "bfloat16_bits", "bfloat16_numbers"]

Builder = Callable[[Machine, Instruction], Run]

# Of numbers that round to the nearest, as NumPy's do, or are no floating-point numbers.
_PLAIN: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "neg": np.negative, "abs": np.absolute,
}  # fmt: skip
_QUALIFIERS = {"rn", "ftz", "lo", "full", "approx", "relu", "NaN"}
_COMPARED: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip
_OPPOSITE = {"ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_SMALLEST_NORMAL = np.float32(2.0**-126)


def assign(target: NDArray[Any], value: Any, lanes: Lanes) -> None:
    """Writes a value to the lanes that run."""
    if lanes is None:
        np.copyto(target, value, casting="unsafe")
    else:
        np.copyto(target, value, casting="unsafe", where=lanes)


def bfloat16_numbers(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """What these bits are."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bfloat16_bits(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest numbers of bfloat16, and even ones of two."""
    bits = numbers.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(numbers), np.uint32(0x7FFF), rounded).astype(np.uint16)


def _computed(target: NDArray[Any], compute: Callable[[], Any]) -> Run:
    def run(lanes: Lanes) -> None:
        assign(target, compute(), lanes)

    return run


def _applied(ufunc: Any, target: NDArray[Any], *sources: Any) -> Run:
    """A function of NumPy's from rows to a row of the same type."""
    if all(np.ndim(x) == 0 for x in sources):
        return _computed(target, lambda: ufunc(*sources))

    def run(lanes: Lanes) -> None:
        if lanes is None:
            ufunc(*sources, out=target)
        else:
            ufunc(*sources, out=target, where=lanes)

    return run


def _check(parts: tuple[str, ...], allowed: set[str] = _QUALIFIERS) -> None:
    unknown = set(parts[1:-1]) - allowed
    if unknown:
        raise UnsupportedError(f"qualifiers {sorted(unknown)}")


def _flushed(parts: tuple[str, ...], compute: Callable[[], Any]) -> Callable[[], Any]:
    """As `.ftz` has it, with zeros for subnormal results."""
    if "ftz" not in parts:
        return compute

    def flushed() -> Any:
        value = compute()
        return np.where(np.abs(value) < _SMALLEST_NORMAL, np.copysign(np.float32(0), value), value)

    return flushed


def _plain(machine: Machine, x: Instruction) -> Run:
    _check(x.parts)
    kind = x.parts[-1]
    if kind in ("bf16", "bf16x2", "f16x2") or "ftz" in x.parts:
        raise UnsupportedError(f"type {kind}, or .ftz")
    ufunc = np.logical_not if x.parts[0] == "not" and kind == "pred" else _PLAIN[x.parts[0]]
    target = machine.target(x.operands[0], kind)
    return _applied(ufunc, target, *(machine.source(y, kind) for y in x.operands[1:]))


def _multiply(machine: Machine, x: Instruction) -> Run:
    """`mul` and `mad`: of integers the lower, the upper or both halves."""
    name, kind = x.parts[0], x.parts[-1]
    _check(x.parts, _QUALIFIERS | {"hi", "wide"})
    a, b = (machine.source(y, kind) for y in x.operands[1:3])
    wide = f"{kind[0]}{2 * int(kind[1:])}"
    if "wide" in x.parts:
        dtype = dtype_of(wide).type
        target = machine.target(x.operands[0], wide)
        if name == "mul":
            return _computed(target, lambda: np.multiply(a, b, dtype=dtype))
        c = machine.source(x.operands[3], wide)
        return _computed(target, lambda: np.multiply(a, b, dtype=dtype) + c)
    target = machine.target(x.operands[0], kind)
    if "hi" in x.parts:
        if kind not in ("u32", "s32") or name != "mul":
            raise UnsupportedError(".hi of this type")
        dtype = dtype_of(wide).type
        return _computed(target, lambda: np.multiply(a, b, dtype=dtype) >> dtype(32))
    if name == "mul":
        if kind[0] == "f" and "ftz" not in x.parts:
            return _applied(np.multiply, target, a, b)
        return _computed(target, _flushed(x.parts, lambda: np.multiply(a, b)))
    c = machine.source(x.operands[3], kind)
    return _computed(target, lambda: a * b + c)


def _fma(machine: Machine, x: Instruction) -> Run:
    _check(x.parts)
    if x.parts[-1] != "f32":
        raise UnsupportedError("fma of another type than f32")
    target = machine.target(x.operands[0], "f32")
    a, b, c = (machine.source(y, "f32") for y in x.operands[1:])

    def compute() -> Any:
        # The product of two is exact in float64.
        exact = np.multiply(a, b, dtype=np.float64)
        return np.add(exact, c, dtype=np.float64).astype(np.float32)

    return _computed(target, _flushed(x.parts, compute))


def _divide(machine: Machine, x: Instruction) -> Run:
    """`div` and `rem`; of integers towards zero."""
    _check(x.parts)
    name, kind = x.parts[0], x.parts[-1]
    target = machine.target(x.operands[0], kind)
    a, b = (machine.source(y, kind) for y in x.operands[1:])
    if kind[0] == "f":
        return _computed(target, lambda: np.divide(a, b))

    def quotient() -> Any:
        divisor = np.where(b == 0, np.ones_like(b), b)
        down = np.floor_divide(a, divisor)
        inexact = (down * divisor != a) & ((a < 0) != (divisor < 0))
        return down + inexact.astype(down.dtype)

    if name == "div":
        return _computed(target, quotient)
    return _computed(target, lambda: a - quotient() * b)


def _extreme(machine: Machine, x: Instruction) -> Run:
    """`min` and `max`; a number wins over NaN, unless `.NaN`."""
    _check(x.parts)
    name, kind = x.parts[0], x.parts[-1]
    target = machine.target(x.operands[0], kind)
    a, b = (machine.source(y, kind) for y in x.operands[1:])
    if kind[0] == "f" and "NaN" not in x.parts:
        return _applied(np.fmin if name == "min" else np.fmax, target, a, b)
    ufunc = np.minimum if name == "min" else np.maximum
    if "relu" in x.parts:
        return _computed(target, lambda: np.maximum(ufunc(a, b), dtype_of(kind).type(0)))
    return _applied(ufunc, target, a, b)


def _function(machine: Machine, x: Instruction) -> Run:
    """Of one number of float32."""
    if x.parts[-1] != "f32":
        raise UnsupportedError("type")
    functions: dict[str, Callable[[Any], Any]] = {
        "ex2": np.exp2, "lg2": np.log2, "rcp": lambda a: np.float32(1) / a, "sqrt": np.sqrt,
        "rsqrt": lambda a: np.float32(1) / np.sqrt(a), "sin": np.sin, "cos": np.cos,
    }  # fmt: skip
    function, a = functions[x.parts[0]], machine.source(x.operands[1], "f32")
    target = machine.target(x.operands[0], "f32")
    return _computed(target, _flushed(x.parts, lambda: function(a)))


def _shift(machine: Machine, x: Instruction) -> Run:
    """`shl` and `shr`; by more than there are bits, it leaves none."""
    name, kind = x.parts[0], x.parts[-1]
    bits = 8 * dtype_of(kind).itemsize
    target = machine.target(x.operands[0], kind)
    a, by = machine.source(x.operands[1], kind), machine.source(x.operands[2], "u32")
    ufunc, dtype = (np.left_shift if name == "shl" else np.right_shift), dtype_of(kind).type
    most = bits - 1
    if kind[0] == "s" and name == "shr":
        return _computed(target, lambda: ufunc(a, np.minimum(by, np.uint32(most)).astype(dtype)))
    if np.ndim(by) == 0 and by <= most:
        return _applied(ufunc, target, a, by.astype(dtype))
    return _computed(
        target,
        lambda: np.where(
            by > most, dtype(0), ufunc(a, np.minimum(by, np.uint32(most)).astype(dtype))
        ),
    )


def _extract(machine: Machine, x: Instruction) -> Run:
    """`bfe`: some bits of a number of 32."""
    kind = x.parts[-1]
    if kind not in ("u32", "s32"):
        raise UnsupportedError("bfe of another type than 32 bits")
    target = machine.target(x.operands[0], kind)
    a = machine.source(x.operands[1], kind)
    position, length = (
        machine.source(y, "u32").astype(np.int64) & 0xFF for y in x.operands[2:]
    )  # fmt: skip

    def compute() -> Any:
        bits = a.astype(np.int64) >> np.minimum(position, 32)
        kept = bits & ((1 << np.minimum(length, 32)) - 1)
        if kind == "u32":
            return kept
        last = np.minimum(position + length - 1, 31)
        negative = ((a.astype(np.int64) >> last) & 1).astype(np.bool_) & (length > 0)
        return np.where(negative, kept | -(1 << np.minimum(length, 32)), kept)

    return _computed(target, compute)


def _permute(machine: Machine, x: Instruction) -> Run:
    """`prmt`: four bytes of eight; the sign of one where its choice has the fourth bit."""
    if x.parts != ("prmt", "b32"):
        raise UnsupportedError("prmt of another mode")
    target = machine.target(x.operands[0], "b32")
    a, b, choice = (machine.source(y, "b32") for y in x.operands[1:])

    def compute() -> Any:
        both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
        result = np.uint64(0)
        for i in range(4):
            chosen = (choice >> np.uint32(4 * i)).astype(np.uint64)
            byte = both >> (chosen & np.uint64(7)) * np.uint64(8) & np.uint64(0xFF)
            sign = (byte >> np.uint64(7)) * np.uint64(0xFF)
            byte = np.where(chosen & np.uint64(8), sign, byte)
            result = result | byte << np.uint64(8 * i)
        return result.astype(np.uint32)

    return _computed(target, compute)


def _compare(machine: Machine, x: Instruction) -> Run:
    """`setp`; what is not a number, is in no order."""
    how, kind = x.parts[1], x.parts[-1]
    if len(x.parts) == 4 and x.parts[2] not in ("and", "or", "xor"):
        raise UnsupportedError("setp")
    target = machine.target(x.operands[0], "pred")
    a, b = (machine.source(y, kind) for y in x.operands[1:3])

    def compute() -> Any:
        if kind[0] != "f":
            return _COMPARED[how](a, b)
        if how in ("num", "nan"):
            return (np.isnan(a) | np.isnan(b)) == (how == "nan")
        if how in _OPPOSITE:
            return ~_COMPARED[_OPPOSITE[how]](a, b)
        if how in ("ne", "equ"):
            return ((a < b) | (a > b)) == (how == "ne")
        return _COMPARED[how.removesuffix("u")](a, b)

    if how.removesuffix("u") not in {*_COMPARED, "num", "nan"}:
        raise UnsupportedError("setp")
    if len(x.parts) == 3:
        if kind[0] != "f":
            return _applied(_COMPARED[how], target, a, b)
        return _computed(target, compute)
    combine = _PLAIN[x.parts[2]]
    c = machine.source(x.operands[3], "pred")
    return _computed(target, lambda: combine(compute(), c))


def _select(machine: Machine, x: Instruction) -> Run:
    kind = x.parts[-1]
    target = machine.target(x.operands[0], kind)
    a, b = (machine.source(y, kind) for y in x.operands[1:3])
    which = machine.source(x.operands[3], "pred")
    return _computed(target, lambda: np.where(which, a, b))


def _move(machine: Machine, x: Instruction) -> Run:
    kind = x.parts[-1]
    into, out_of = x.operands
    if isinstance(into, tuple) or isinstance(out_of, tuple):
        many = into if isinstance(into, tuple) else out_of
        assert isinstance(many, tuple)
        part = f"b{int(kind[1:]) // len(many)}"
        size = len(many)
        if isinstance(into, tuple):
            whole = machine.source(out_of, kind)
            if np.ndim(whole) == 0:
                raise UnsupportedError("parts of a number")
            pieces = whole.view(dtype_of(part).type).reshape(-1, size)
            targets = [None if y is None else machine.target(y, part) for y in into]

            def unpack(lanes: Lanes) -> None:
                values = pieces.copy()
                for i, target in enumerate(targets):
                    if target is not None:
                        assign(target, values[:, i], lanes)

            return unpack
        sources = [machine.source(y, part) for y in many]
        target = machine.target(into, kind)

        def pack() -> Any:
            values = np.empty((machine.lanes, size), dtype_of(part).type)
            for i, source in enumerate(sources):
                values[:, i] = source
            return values.view(dtype_of(kind).type)[:, 0]

        return _computed(target, pack)
    source, target = machine.source(out_of, kind), machine.target(into, kind)
    if not isinstance(out_of, Register) or out_of.name not in machine.sum_registers:
        return _computed(target, lambda: source)
    name = out_of.name

    def run(lanes: Lanes) -> None:
        assign(target, source, lanes)
        machine.products.moved(name, target, lanes)

    return run


def _parameter(machine: Machine, x: Instruction) -> Run:
    """`ld.param`; memory of a thread's own is not supported."""
    kind, address = x.parts[-1], x.operands[1]
    name = getattr(address, "base", "")
    if name not in machine.parameters or getattr(address, "offset", 0):
        raise UnsupportedError("parameter")
    return _computed(
        machine.target(x.operands[0], kind), lambda: machine.source(machine.parameters[name], kind)
    )


_WHOLE = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


def _convert(machine: Machine, x: Instruction) -> Run:
    """`cvt`."""
    to, of = x.parts[-2:]
    how = set(x.parts[1:-2])
    if (to, of, how) == ("tf32", "f32", {"rna"}):
        target, numbers = machine.target(x.operands[0], "b32"), machine.source(x.operands[1], of)
        return _computed(target, lambda: _tf32_bits(numbers))
    if how - {"rn", "rzi", "rni", "rmi", "rpi", "ftz"}:
        raise UnsupportedError("cvt")
    if to in ("bf16x2", "f16x2"):
        target = machine.target(x.operands[0], "b32")
        upper, lower = (machine.source(y, of) for y in x.operands[1:])

        def pack() -> Any:
            high, low = (_half_bits(y, to).astype(np.uint32) for y in (upper, lower))
            return (high << np.uint32(16)) | low

        return _computed(target, pack)
    source = machine.source(x.operands[1], of)
    if to == "bf16":
        if of not in ("f32", "u32", "s32", "u16", "s16", "u8", "s8"):
            raise UnsupportedError("cvt")
        target = machine.target(x.operands[0], "b16")
        return _computed(target, lambda: bfloat16_bits(np.asarray(source, np.float32)))
    target = machine.target(x.operands[0], to)
    if of == "bf16":
        return _computed(target, lambda: bfloat16_numbers(source))
    if of[0] == "f" and to[0] != "f":
        rounded = _WHOLE[next(iter(how - {"ftz"}))]
        limits = np.iinfo(dtype_of(to).type)

        def compute() -> Any:
            whole = np.nan_to_num(rounded(source.astype(np.float64)), nan=0)
            return np.clip(whole, limits.min, limits.max).astype(dtype_of(to).type)

        return _computed(target, compute)
    whole = how & set(_WHOLE)
    if whole and to != of:
        raise UnsupportedError("cvt")
    rounded = _WHOLE[next(iter(whole))] if whole else np.asarray
    return _computed(target, lambda: rounded(source).astype(dtype_of(to).type))


def _tf32_bits(numbers: Any) -> Any:
    """The nearest with 10 bits behind the point, of two the farther from zero; NaN and inf stay."""
    numbers = np.asarray(numbers, np.float32)
    bits = numbers.view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(numbers), rounded, bits)


def _half_bits(numbers: Any, kind: str) -> Any:
    if kind.startswith("bf16"):
        return bfloat16_bits(np.asarray(numbers))
    return numbers.astype(np.float16).view(np.uint16)


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(_PLAIN, _plain), "mul": _multiply, "mad": _multiply, "fma": _fma,
    "div": _divide, "rem": _divide, "min": _extreme, "max": _extreme, "shl": _shift,
    "shr": _shift, "bfe": _extract, "prmt": _permute, "setp": _compare, "selp": _select,
    "mov": _move, "cvt": _convert, "param": _parameter,
    **dict.fromkeys(("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos"), _function),
}  # fmt: skip
