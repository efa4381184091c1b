"""The windows that layers are made with: of a row of tokens, or one for each axis of a grid."""

from __future__ import annotations

from ..checks import one_line
from ..ops.locality import AnyWindow, Window, has_no_limits, is_of_axes, resolve_window
from ..terms import GridTerms, Terms

__all__ = ["check_window", "check_window_of_axes"]


def check_window(name: str, window: AnyWindow) -> AnyWindow:
    """That of the row, or one for each axis of a grid; None without any limit.

    Args:
        name: of the layer.
        window: as it was given.

    Raises:
        ValueError: if it is neither.
    """
    if has_no_limits(window) or is_of_axes(window):
        return check_window_of_axes(name, window)
    (found,) = resolve_window(name, window, Terms()) or (None,)
    return found


def check_window_of_axes(name: str, window: AnyWindow) -> tuple[Window, ...] | None:
    """A window for each axis, of which a call is to have as many; None without any limit.

    Args:
        name: of the layer.
        window: as it was given.

    Raises:
        ValueError: if it has none for each axis.
    """
    if window is None or has_no_limits(window):
        return None
    if not is_of_axes(window):
        raise ValueError(
            f"{name}: window must have one (left, right) or None for each axis of the map, "
            f"got {one_line(window)}"
        )
    return resolve_window(name, window, GridTerms((1,) * len(window))) or None
