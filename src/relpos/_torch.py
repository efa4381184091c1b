"""Import torch without its warning that NumPy is missing, which nothing here needs."""

import warnings
from importlib.util import find_spec

__all__ = []

if find_spec("numpy") is None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        import torch  # noqa: F401
