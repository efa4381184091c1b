"""Under what a comparison's models were trained and measured, so that runs can be put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

__all__ = ["conditions"]


def conditions(settings: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """What `metrics.json` says of the conditions, which are the same for every position.

    Args:
        settings: of the task, a dataclass with `recorded()`.
        about: the data, as a checkpoint says it.

    Returns:
        `settings` as in `model.json`, as `model` the sizes and all else that the settings say, and
        of the `data` the name, the digest and the split.
    """
    recorded = settings.recorded()
    others = {
        name: value
        for name, value in asdict(settings).items()
        # What is compared where nothing is asked for says nothing of this run.
        if name not in recorded and name != "compared"
    }
    data = {name: about[name] for name in ("name", "digest", "split")}
    return {"settings": recorded, "model": others, "data": data}
