"""What a check says of a model before and after `adapt`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import T5Config, T5EncoderModel

from relpos.adapters import Report
from relpos_tasks.adapting.gain import Gain, Run, _first_tensor, measure_gain


def run(*seconds):
    return Run(list(seconds), None, torch.ones(2))


def gain(original, adapted, windowed=None):
    return Gain(Report([], []), original, adapted, windowed)


@pytest.mark.parametrize(
    ("original", "adapted", "said"),
    [
        # The medians of the times are 0.1 and 0.1.
        ((0.3, 0.1, 0.1), (0.2, 0.1, 0.01), ("0.3", "0.2", "1.50")),
        # Of an even number of rounds the lower one of the two in the middle.
        ((0.2, 0.6, 0.1, 0.4), (0.1, 0.1, 0.1, 0.1), ("0.2", "0.1", "2.00")),
    ],
)
def test_the_times_are_those_of_the_round_with_the_median_ratio(original, adapted, said):
    before, after, ratio, _ = gain(run(*original), run(*adapted)).lines()
    assert (before, after) == (f"original  {said[0]} s", f"adapted   {said[1]} s")
    assert ratio.startswith(f"{said[2]} times as fast; ")


def test_a_window_is_timed_in_the_same_round():
    lines = gain(run(0.3, 0.2, 0.9), run(0.1, 0.1, 0.1), run(0.07, 0.09, 0.08)).lines()
    assert lines[:2] == ["original  0.3 s", "adapted   0.1 s"]
    assert "windowed  0.07 s" in lines


def test_without_an_original_the_round_is_that_of_the_median_time():
    lines = gain(None, run(0.3, 0.1, 0.2), run(0.1, 0.2, 0.3)).lines()
    assert lines[:2] == ["original  asks for more memory than there is", "adapted   0.2 s"]
    assert "windowed  0.3 s" in lines
    assert "times as fast" not in "".join(lines)


def test_outputs_of_other_lengths_have_no_distance():
    found = gain(run(0.2), run(0.1), Run([0.1], None, torch.ones(3))).lines()
    assert "the window changes the outputs by their shapes, (3,) and (2,)" in found


def test_a_model_may_return_a_tensor_maps_or_a_dictionary():
    x, y = torch.ones(1, 2), torch.zeros(1, 2)
    for outputs in (x, (x, y), {"loss": x.sum(), "logits": x}, {"feature_maps": (y, x)}):
        assert _first_tensor(outputs) is x
    with pytest.raises(ValueError, match="must be of a model that returns tensors, got none"):
        _first_tensor({"logits": None})


def test_a_model_of_which_all_is_left_is_refused_with_the_reasons():
    sizes = {"d_model": 8, "d_kv": 4, "num_heads": 2, "d_ff": 8, "num_layers": 1, "vocab_size": 9}
    model = T5EncoderModel(T5Config(**sizes, dropout_rate=1.0)).eval()
    with pytest.raises(
        ValueError, match=r"adapt: a check must be .* that is adapted, got\nadapted: 0"
    ):
        measure_gain(model, {"input_ids": torch.ones(1, 3, dtype=torch.long)})


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is Linux's")
@pytest.mark.no_typecheck
def test_the_memory_of_a_run_does_not_depend_on_those_before():
    """What they freed is no longer counted as what there is before it."""
    sizes = {"d_model": 64, "num_heads": 8, "d_kv": 16, "d_ff": 64, "num_layers": 1}
    model = T5EncoderModel(T5Config(**sizes, vocab_size=9)).eval()
    found = measure_gain(model, {"input_ids": torch.ones(1, 1500, dtype=torch.long)})
    # Scores and weights of all pairs, in float32; of the adapted model queries, keys and values.
    assert found.original.peak_mib > 8 * 1500**2 * 4 / 2**20
    assert 0 < found.adapted.peak_mib < found.original.peak_mib / 2
