"""Every check that several public functions make, each with its one wording.

Errors read `"{function}: {argument} must {rule}, got {value}"`.
"""

from .installed import check_installed
from .modules import check_module
from .settings import (
    check_count,
    check_flag,
    check_flags,
    check_number,
    check_probability,
    check_scale,
    check_sizes,
    check_softcap,
    one_line,
)
from .tensors import (
    FLOATING,
    check_device,
    check_dtype,
    check_floating,
    check_integers,
    check_like,
    check_like_parameter,
    check_queries,
    check_shape,
    check_tensor,
)

__all__ = [
    "FLOATING",
    "check_count",
    "check_device",
    "check_dtype",
    "check_flag",
    "check_flags",
    "check_floating",
    "check_installed",
    "check_integers",
    "check_like",
    "check_like_parameter",
    "check_module",
    "check_number",
    "check_probability",
    "check_queries",
    "check_scale",
    "check_shape",
    "check_sizes",
    "check_softcap",
    "check_tensor",
    "one_line",
]
