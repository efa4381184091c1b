"""The errors that relpos raises."""

__all__ = ["BackendError", "ShapeError"]


class ShapeError(ValueError):
    """A tensor argument has the wrong shape, layout, dtype or device."""


class BackendError(RuntimeError):
    """A backend cannot do what was asked of it, or not on this machine."""
