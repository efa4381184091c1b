"""The documents that people write, with the parts between their markers made from measured runs.

A part named `time` stands between `<!-- time -->` and `<!-- /time -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from relpos_tasks.music.reported import HUANG_2018

from ..files import has, load
from ..workloads.adapted import MODELS
from .adapter_tables import gains_table, measured_on
from .league_excerpt import league_excerpt
from .league_grounds import GROUNDS
from .op_tables import gpu_excerpt, gpu_part, half_part, local_part, memory_table, time_table
from .task_tables import music_table, translation_table, vision_table

__all__ = ["DOCUMENTS", "filled", "parts"]

# Of each document, by its path in the repository, the parts that it has.
DOCUMENTS = {
    "README.md": ("adapters", "chorales", "league", "time", "memory", "half", "gpu"),
    "docs/gpu.md": ("cuda",),
    "docs/local.md": ("local",),
    "docs/tasks.md": ("literature", "paper", "performances", "translation", "vision"),
}
NOT_MEASURED = "Not measured yet."


def parts(result: dict, gpu_result: dict | None = None) -> dict[str, str]:
    """Every part, by its name.

    Args:
        result: of `benchmarks.attention` on a CPU.
        gpu_result: the same on a GPU; None where there is none.
    """
    more = load("cuda_more.json") if has("cuda_more.json") else None
    return {
        "adapters": adapters_part(load("adapters.json")),
        "time": time_table(result),
        "memory": memory_table(result),
        "half": half_part(load("half.json")),
        "local": local_part(load("local.json")),
        "gpu": gpu_excerpt(gpu_result, more),
        "cuda": gpu_part(gpu_result, more),
        "chorales": of_run("chorales", music_table),
        "literature": of_run("literature", partial(music_table, reported=HUANG_2018)),
        "paper": of_run("paper", music_table),
        "performances": of_run("performances", music_table),
        "translation": of_run("translation", translation_table),
        "vision": of_run("vision", vision_table),
        "league": league_excerpt(
            {file: load(file) for file in GROUNDS["music"].files if has(file)},
            load("steps.json") if has("steps.json") else None,
        ),
    }


def of_run(name: str, table: Callable[[dict], str]) -> str:
    """The table of a run that was kept, or that there is none."""
    return table(load(f"{name}.json")) if has(f"{name}.json") else NOT_MEASURED


# Beside those with a target.
_WELL_KNOWN = ("borzoi", "monai_swin", "nemo", "timm_beit", "timm_swin_v2")


def adapters_part(result: dict) -> str:
    """What the best known of the adapted models gain, at each input that is timed."""
    best_known = tuple(model for model in MODELS if model.wanted or model.family in _WELL_KNOWN)
    note = (
        "How many times as fast as the original, by the fastest of its own implementations (which "
        "is named in brackets; one layer at the sizes of published models, float32, "
        f"{measured_on(result, 'time', best_known)}), and the largest difference of the layer's "
        "output, as a part of its largest number:"
    )
    return f"{note}\n\n{gains_table(result, best_known)}"


def filled(document: str, text: str, made: Mapping[str, str]) -> str:
    """A document with each of its parts as it is made.

    Args:
        document: its path in the repository, one of `DOCUMENTS`.
        text: its text.
        made: the parts, by their names.

    Raises:
        ValueError: if its markers are not those of its parts, each once.
    """
    names = DOCUMENTS[document]
    marked = re.findall(r"^<!-- ([a-z]+) -->$", text, flags=re.MULTILINE)
    if sorted(marked) != sorted(names):
        raise ValueError(f"{document} must have the parts {sorted(names)}, got {sorted(marked)}")
    for name in names:
        text, count = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda found, name=name: f"{found[1]}{made[name]}\n{found[2]}",
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise ValueError(f"{document} must have one end of the part {name!r}, got {count}")
    return text
