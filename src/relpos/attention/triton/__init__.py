from .entry import attention, refuse, unavailable

__all__ = ["attention", "refuse", "unavailable"]
