"""The text of a kernel in PTX as a list of instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Address", "Instruction", "Kernel", "Operand", "Parameter", "Register", "read_kernel"]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)^\{", re.DOTALL | re.MULTILINE)
_PARAMETER = re.compile(r"\.param\s+\.(\w+)\s+[^,]*?([\w$]+)\s*(?:,|$)")
_DECLARATION = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
_NUMBERED = re.compile(r"(%[\w$]+)<(\d+)>")
_LABEL = re.compile(r"([$\w]+):(?!:)")
_GUARD = re.compile(r"@(!?)(%[\w$]+)\s+")
_NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")
_ADDRESS = re.compile(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_DIRECTIVES = (".loc", ".pragma", ".file")


@dataclass(frozen=True)
class Register:
    """A register, by name."""

    name: str


@dataclass(frozen=True)
class Address:
    """`[base+offset]`; the base is a register's name, or that of a variable."""

    base: str
    offset: int


# A number is its bits; text is the name of a label or variable. None is `_`, for what nobody reads.
Operand = Register | Address | int | str | tuple["Operand", ...] | None


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Args:
        parts: of its name, as ("add", "s32").
        operands: in order.
        guard: the predicate under which it runs, or None.
        negated: whether it runs where the predicate is false.
        text: as it is written.
    """

    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: str | None
    negated: bool
    text: str


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its type, as "u64", and name."""

    type: str
    name: str


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Args:
        name: of the kernel.
        parameters: in order.
        registers: the type of each, by name.
        instructions: in order.
        labels: the number of the instruction that follows each.
    """

    name: str
    parameters: tuple[Parameter, ...]
    registers: dict[str, str]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]


def read_kernel(text: str) -> Kernel:
    """The first kernel of a text in PTX."""
    text = _COMMENT.sub("", text)
    entry = _ENTRY.search(text)
    if entry is None:
        raise ValueError("read_kernel: text must have an .entry")
    body = text[entry.end() : text.index("\n}", entry.end())]
    kept = "\n".join(x for x in body.splitlines() if not x.strip().startswith(_DIRECTIVES))
    parameters = tuple(Parameter(*x) for x in _PARAMETER.findall(entry[2]))
    registers: dict[str, str] = {}
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in kept.split(";"):
        rest = statement.strip()
        while rest:
            label = _LABEL.match(rest)
            if label:
                labels[label[1]], rest = len(instructions), rest[label.end() :].strip()
            elif rest[0] in "{}":  # a block of inline assembly
                rest = rest[1:].strip()
            else:
                break
        declaration = _DECLARATION.match(rest)
        if declaration:
            _declare(registers, *declaration.groups())
        elif rest:
            instructions.append(_instruction(rest))
    return Kernel(entry[1], parameters, registers, tuple(instructions), labels)


def _declare(registers: dict[str, str], kind: str, names: str) -> None:
    for name in (x.strip() for x in names.split(",")):
        numbered = _NUMBERED.fullmatch(name)
        new = [f"{numbered[1]}{i}" for i in range(int(numbered[2]))] if numbered else [name]
        if any(x in registers for x in new):
            raise ValueError(f"read_kernel: {name} is declared twice, which is not supported")
        registers |= dict.fromkeys(new, kind)


def _instruction(text: str) -> Instruction:
    guard = _GUARD.match(text)
    rest = text[guard.end() :] if guard else text
    name, _, operands = rest.partition(" ") if "\t" not in rest else rest.partition("\t")
    return Instruction(
        tuple(name.strip().split(".")),
        tuple(_operand(x) for x in _split(operands)),
        guard[2] if guard else None,
        bool(guard and guard[1]),
        " ".join(text.split()),
    )


def _split(operands: str) -> list[str]:
    """At the commas outside of braces."""
    found, depth, begin = [], 0, 0
    for i, character in enumerate(operands):
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth == 0:
            found.append(operands[begin:i].strip())
            begin = i + 1
    last = operands[begin:].strip()
    return [*found, last] if last else found


def _operand(text: str) -> Operand:
    if text[0] == "%":
        return Register(text)
    if text[0] == "{":
        return tuple(_operand(x) for x in _split(text[1:-1]))
    if text[0] == "[":
        address = _ADDRESS.fullmatch(text)
        if address is None:
            raise ValueError(f"read_kernel: address not supported: {text}")
        return Address(address[1], int(address[2] or "0", 0))
    if text[:2] in ("0f", "0d", "0F", "0D"):
        return int(text[2:], 16)
    if _NUMBER.fullmatch(text):
        return int(text.rstrip("U"), 0)
    return None if text == "_" else text
