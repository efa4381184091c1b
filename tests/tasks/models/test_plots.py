"""What `relpos.plots` finds in a decoder: its positions by layer, and their rows."""

import numpy as np

from relpos.plots import decoder_positions, table_rows
from relpos_tasks.models import DecoderConfig, DecoderLM


def decoder(position):
    return DecoderLM(
        DecoderConfig(vocabulary=9, width=8, layers=1, heads=2, position=position, max_length=16)
    )


def test_the_positions_of_a_decoder_by_layer():
    model = decoder("huang")
    positions = decoder_positions(model)
    assert list(positions) == ["layer 1"]
    assert positions["layer 1"] is model.blocks[0].attention.position
    model = decoder("absolute")
    assert decoder_positions(model) == {"": model.position}
    assert decoder_positions(decoder("none")) == {}


def test_the_rows_of_a_model_are_those_of_its_tables():
    model = decoder("huang")
    rows, first, relative = table_rows(model)
    assert (rows.shape, first, relative) == ((1, 16, 4), -15, True)
    np.testing.assert_array_equal(rows, model.blocks[0].attention.position.keys.detach())
    rows, first, relative = table_rows(decoder("absolute"))
    assert (rows.shape, first, relative) == ((1, 16, 8), 0, False)
    assert len(table_rows(decoder("none"))[0]) == 0
