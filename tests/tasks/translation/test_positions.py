"""Names of position schemes: every one of an encoder, and Shaw's with k and its tables."""

import pytest

from relpos_tasks.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from relpos_tasks.models.positions import POSITIONS
from relpos_tasks.translation.positions import (
    NAMES,
    distances,
    is_relative,
    position_options,
    title_of,
)


def test_every_scheme_but_the_causal_ones_has_a_name():
    assert set(POSITIONS) - set(NAMES) == {"xpos", "relative-logits"}
    for name in NAMES:
        model = EncoderDecoder(
            EncoderDecoderConfig(9, 9, width=8, layers=1, heads=2, **position_options(name))
        )
        assert model.config.position == name


@pytest.mark.parametrize(
    ("name", "rows", "tables"),
    [
        ("shaw-0", 1, {"keys", "values"}),
        ("shaw-3", 7, {"keys", "values"}),
        ("shaw-3-keys", 7, {"keys"}),
        ("shaw-3-values", 7, {"values"}),
    ],
)
def test_shaw_has_so_many_rows_and_these_tables(name, rows, tables):
    config = EncoderDecoderConfig(9, 9, width=8, layers=1, heads=2, **position_options(name))
    model = EncoderDecoder(config)
    position = model.encoder[0].attention.position
    found = {key: value.shape[-2] for key, value in position.named_parameters()}
    assert found == dict.fromkeys(tables, rows)


@pytest.mark.parametrize("name", ["shaw-", "shaw-01", "shaw-99999", "shaw-2-rows", "xpos", ""])
def test_other_names_are_refused(name):
    for function in (position_options, title_of, is_relative):
        with pytest.raises(
            ValueError, match=f"position: must be one of sinusoidal, .*, got '{name}'"
        ):
            function(name)


def test_distances_of_both_tables_rise():
    names = ["shaw-16", "none", "shaw-0", "shaw", "shaw-2-values", "shaw-4"]
    assert distances(names) == {0: "shaw-0", 4: "shaw-4", 16: "shaw-16"}
