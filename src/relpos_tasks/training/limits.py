"""How large a seed and how many the steps of a run may be."""

from __future__ import annotations

__all__ = ["MAX_SEED", "MAX_STEPS", "check_seed"]

# Times the most steps and 1024 devices, it still fits the 63 bits that seed the dropout of a step.
MAX_SEED = 2**32 - 1
MAX_STEPS = 2**20


def check_seed(function: str, seed: int) -> int:
    """The seed, if it is in range.

    Args:
        function: on whose behalf the check is made.
        seed: any number.

    Raises:
        ValueError: unless `0 <= seed <= MAX_SEED`.

    >>> check_seed("compose", 7)
    7
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"{function}: seed must be in 0..{MAX_SEED}, got {seed}")
    return seed
