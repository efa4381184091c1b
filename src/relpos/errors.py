"""The errors that relpos raises."""

__all__ = ["BackendError", "ShapeError"]


class ShapeError(ValueError):
    """A tensor argument has the wrong shape, layout, dtype or device."""


class BackendError(RuntimeError):
    """A backend that was asked for by name cannot run these inputs on this machine."""
