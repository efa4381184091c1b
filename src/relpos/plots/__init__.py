"""Pictures: the shear step by step, ranges of keys, position tables, attention maps.

Each function returns a matplotlib `Figure`; `image_bytes` makes a file of it, the same bytes from
the same numbers. They need matplotlib and NumPy, which `pip install "relpos[plots]"` brings.
"""

from ..checks import check_installed

check_installed("relpos.plots", "matplotlib", "numpy", extra="plots")

from .attention import attention_figure, decoder_weights, mean_by_offset, mean_distance
from .ranges import ranges_figure
from .rows import Rows, decoder_positions, effect_of, rows_of, table_rows
from .schemes import SCHEMES, Scheme, Sizes, initial
from .shear import ShearSteps, shear_figure, shear_steps
from .style import image_bytes
from .tables import cosine_figure, norms_figure, table_figure

__all__ = [
    "SCHEMES",
    "Rows",
    "Scheme",
    "ShearSteps",
    "Sizes",
    "attention_figure",
    "cosine_figure",
    "decoder_positions",
    "decoder_weights",
    "effect_of",
    "image_bytes",
    "initial",
    "mean_by_offset",
    "mean_distance",
    "norms_figure",
    "ranges_figure",
    "rows_of",
    "shear_figure",
    "shear_steps",
    "table_figure",
    "table_rows",
]
