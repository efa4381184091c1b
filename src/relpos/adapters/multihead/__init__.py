"""Position schemes for every `torch.nn.MultiheadAttention` of a model that is to be trained."""

from .add_positions import add_positions, remove_positions

__all__ = ["add_positions", "remove_positions"]
