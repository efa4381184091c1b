from .entry import attention, is_fast, operator_call, part, part_gradients, unavailable, unsupported

__all__ = [
    "attention",
    "is_fast",
    "operator_call",
    "part",
    "part_gradients",
    "unavailable",
    "unsupported",
]
