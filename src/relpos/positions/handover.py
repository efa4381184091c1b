"""What layers and `Compose` hand to a position, and ask of it: its call, and its scale."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ..checks import one_line
from ..errors import ShapeError
from ..terms import GridTerms, Terms
from .absolute import LearnedAbsolute, Sinusoidal
from .scales import scale_or_default

__all__ = ["apply_position", "check_position", "resolve_scale"]


def check_position(owner: str, argument: str, position: Callable[..., Any]) -> None:
    """Raise unless `position` can be called as `apply_position` calls it.

    Args:
        owner: the class on whose behalf the check is made.
        argument: the argument's name as the user wrote it.
        position: any module or function.

    Raises:
        TypeError: if it takes other arguments than queries, keys and what it says that it reads, or
            acts on the layer's input.

    >>> check_position("Compose", "positions", nn.Linear(3, 3))
    Traceback (most recent call last):
    TypeError: Compose: positions must be called as position(q, k), got Linear, which takes (input)
    """
    name = type(position).__name__
    if isinstance(position, LearnedAbsolute | Sinusoidal):
        raise TypeError(
            f"{owner}: {argument} must act on queries and keys, got {name}, which is added to the "
            "input of the first layer"
        )
    if isinstance(position, type) or not callable(position):
        name = f"the class {position.__name__}" if isinstance(position, type) else name
        raise TypeError(f"{owner}: {argument} must be a module or a function, got {name}")
    reads = ("query_start", "key_start", "shape", "query_shape")
    options = [option for option in reads if getattr(position, f"reads_{option}", False)]
    given = ["q", "k", "x"] if getattr(position, "reads_input", False) else ["q", "k"]
    forward = position.forward if isinstance(position, nn.Module) else position
    try:
        taken = signature(forward)
    except (TypeError, ValueError):
        # Of compiled code nothing is known.
        return
    # What has no forward of its own (`nn.ModuleList`) has that of `nn.Module`, which only raises.
    unwritten = getattr(forward, "__func__", None) is nn.Module.forward
    fits = False
    with suppress(TypeError):
        if not unwritten:
            taken.bind(*given, **dict.fromkeys(options))
            fits = True
    if fits:
        bound = getattr(forward, "keywords", {})  # a partial's: nobody forgets them
        for option in reads:
            if (
                option in taken.parameters
                and option not in bound
                and not _says(position, f"reads_{option}")
            ):
                raise TypeError(
                    f"{owner}: {argument} must say reads_{option} = True where it takes {option}=, "
                    f"or False where it is not to be given it, got {name} without"
                )
        return
    call = ", ".join([*given, *(f"{option}=" for option in options)])
    instead = "has no forward" if unwritten else f"takes ({', '.join(taken.parameters)})"
    raise TypeError(
        f"{owner}: {argument} must be called as position({call}), got {name}, which {instead}"
    )


def _says(position: Callable[..., Any], attribute: str) -> bool:
    """Whether it has the attribute, but not as the default that `Position` has."""
    if getattr(position, attribute, False) or attribute in getattr(position, "__dict__", {}):
        return True
    others = (kind for kind in type(position).__mro__ if kind.__module__ != f"{__package__}.base")
    return any(attribute in vars(kind) for kind in others)


def apply_position(
    position: Callable[..., Any] | None,
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    x: Float[Tensor, "b n e"] | None = None,
    *,
    query_start: int | None = None,
    key_start: int = 0,
    shape: tuple[int, ...] | None = None,
    query_shape: tuple[int, ...] | None = None,
) -> tuple[Tensor, Tensor, Terms | GridTerms]:
    """`position(q, k)`, or with as much more as `position` says that it reads.

    Args:
        position: any module or function; what it does not say of itself (see `Position`), it does
            not read. None: no positions, so `q`, `k` and no terms.
        q: queries.
        k: keys.
        x: the layer's input, for one that reads it.
        query_start: position of the first query; None means that the queries are the last.
        key_start: position of the first key.
        shape: the keys' grid; None means the one that the position was made for.
        query_shape: the queries' grid; None means the keys'.

    Raises:
        TypeError: if it returns something else.
        ShapeError: if it returns other numbers of heads or tokens.
    """
    if position is None:
        return q, k, Terms()
    options: dict[str, Any] = {}
    if getattr(position, "reads_query_start", False):
        options["query_start"] = query_start
    if key_start and getattr(position, "reads_key_start", False):
        options["key_start"] = key_start
    if shape is not None and getattr(position, "reads_shape", False):
        options["shape"] = shape
    if query_shape is not None and getattr(position, "reads_query_shape", False):
        options["query_shape"] = query_shape
    given = (q, k, x) if getattr(position, "reads_input", False) else (q, k)
    found: Any = position(*given, **options)
    name = type(position).__name__
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise TypeError(f"{name}: must return (q, k, terms), got {one_line(found)}")
    new_q, new_k, terms = found
    if not isinstance(terms, Terms | GridTerms):
        raise TypeError(
            f"{name}: the terms that it returns must be Terms or GridTerms, got {one_line(terms)}"
        )
    for side, old, new in (("queries", q, new_q), ("keys", k, new_k)):
        if new.shape[:3] != old.shape[:3]:
            raise ShapeError(
                f"{name}: the {side} that it returns must be of {tuple(old.shape[:3])} sequences, "
                f"heads and tokens, got {tuple(new.shape[:3])}"
            )
    return new_q, new_k, terms


def resolve_scale(
    function: str,
    position: Callable[..., Any] | None,
    scale: float | None,
    *,
    width: int | None = None,
) -> float | None:
    """The scale of an attention with `position`: `scale`, or else the one that the position needs.

    Args:
        function: the function or class on whose behalf the check is made.
        position: as in `apply_position`; what has no `attention_scale` goes with any.
        scale: the one that was asked for; None means none.
        width: d, of one head; None where it is not known.

    Returns:
        None if neither says one, which stands for `1 / sqrt(d)`.

    Raises:
        ValueError: if the position needs another scale than the one that was asked for.
    """
    needed = getattr(position, "attention_scale", None)
    if scale is None:
        return needed
    if needed is None and getattr(position, "assumes_default_scale", False) and width is not None:
        needed = scale_or_default(None, width)
    if needed is None:
        return scale
    # The same number may have been worked out in two ways.
    if abs(scale - needed) > 1e-6 * abs(needed):
        raise ValueError(
            f"{function}: scale must be None or {needed:g}, as {type(position).__name__} needs, "
            f"got {scale:g}"
        )
    return needed
