"""The second Inkling, and one that goes through its middle twice: sinks beside the logits."""

from typing import Any

from transformers import (
    Inkling2ForCausalLM,
    Inkling2LoopForCausalLM,
    Inkling2LoopTextConfig,
    Inkling2TextConfig,
)

from .inkling import SIZES, case

OPTIONS: dict[str, Any] = {
    "positions": ("relative_position_bias",), "linear": ".linear", "reloads": False,
    "without": ("half", "static cache"),
}  # fmt: skip
LAYERS = {
    "num_hidden_layers": 3, "layer_types": ["hybrid_sliding", "hybrid_sliding", "hybrid"],
    "loop_layer_index_start": 1, "loop_layer_index_end": 3, "loop_num_passes": 2,
    "n_layers_per_attn_res_block": 1, "loop_gate_rank": 4,
}  # fmt: skip

CASES = [
    case("inkling2", lambda: Inkling2ForCausalLM(Inkling2TextConfig(**SIZES)), **OPTIONS),
    case(
        "inkling2_loop",
        lambda: Inkling2LoopForCausalLM(Inkling2LoopTextConfig(**SIZES | LAYERS)),
        adapted=3,
        long=2048,
        # It copies what its cache holds.
        traced={"use_cache": False},
        **OPTIONS,
    ),
]
