"""What `relpos.adapters.adapt` would do for a saved model of transformers, and what is gained."""

from .gain import Gain, measure_gain
from .pretrained import load_pretrained
from .samples import make_inputs

__all__ = ["Gain", "load_pretrained", "make_inputs", "measure_gain"]
