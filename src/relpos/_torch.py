"""torch imported, where NumPy is missing without the warning that it is: nothing here needs it."""

import warnings
from importlib.util import find_spec

__all__ = []

if find_spec("numpy") is None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        import torch  # noqa: F401
