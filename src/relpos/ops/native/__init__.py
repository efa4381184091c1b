from .entry import attention, operator_call, part, part_gradients, unavailable, unsupported

__all__ = ["attention", "operator_call", "part", "part_gradients", "unavailable", "unsupported"]
