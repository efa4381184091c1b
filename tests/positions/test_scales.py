"""The scale that a scheme needs is its own to tell, whoever asks for its logits."""

import pytest
import torch
from torch.testing import assert_close

from relpos import definition
from relpos.adapters import AbsPosEmb1D, RelPosEmb1D, RelPosEmb2D
from relpos.layers import GridAttention, MultiheadAttention
from relpos.positions import (
    Alibi,
    Deberta,
    GatedBias,
    Grid,
    RelativeLogits,
    Shaw,
    TransformerXL,
)
from relpos.positions.scales import scale_or_default
from tests.factories import normal

# Each with the scale that its attention must have: of 2 heads that are 4 wide, on 9 tokens.
ASSUMED = {
    "RelativeLogits": (lambda: RelativeLogits(5, 3, 2, 8, scale=1 / 4), 1 / 4),
    "GatedBias": (lambda: GatedBias(Alibi(2), 2, 4, scale=0.3), 0.3),
    "TransformerXL": (lambda: TransformerXL(4, 2, scale=0.1), 0.1),
    "TransformerXL, usual": (lambda: TransformerXL(4, 2), 0.5),
    "Deberta": (lambda: Deberta(4, 2, 3), 12**-0.5),
    "Deberta, c2p": (lambda: Deberta(4, 2, 3, p2c=False), 8**-0.5),
    "AbsPosEmb1D": (lambda: AbsPosEmb1D(7, 4), 0.5),
    "AbsPosEmb1D, own": (lambda: AbsPosEmb1D(7, 4, scale=0.3), 0.3),
    "RelPosEmb1D": (lambda: RelPosEmb1D(7, 4), 0.5),
    "RelPosEmb1D, own": (lambda: RelPosEmb1D(7, 4, scale=0.3), 0.3),
    "RelPosEmb2D": (lambda: RelPosEmb2D((3, 3), 4), 0.5),
    "RelPosEmb2D, own": (lambda: RelPosEmb2D((3, 3), 4, scale=0.3), 0.3),
    "Grid, unscaled": (lambda: Grid(4, (3, 3), scaled=False), 0.5),
    "Grid, unscaled, own": (lambda: Grid(4, (3, 3), scaled=False, scale=0.3), 0.3),
    # Ramachandran et al. 2019, eq. 3.
    "Grid, no scale": (lambda: Grid(4, (3, 3), concatenated=True, scale=1.0), 1.0),
}
each_assumed = pytest.mark.parametrize("name", ASSUMED)


def built(name):
    torch.manual_seed(0)
    position = ASSUMED[name][0]().double()
    with torch.no_grad():
        for numbers in position.parameters():
            numbers.add_(torch.randn_like(numbers))
    return position


def inputs():
    q, k = (normal(2, 2, 9, 4, seed=seed) for seed in (0, 1))
    return q, k, normal(2, 9, 8, seed=2)


def judged_logits(position, q, k, x, scale):
    """The scores of the double loop at that scale, less those of the content."""
    given = (q, k, x) if position.reads_input else (q, k)
    moved_q, moved_k, terms = position(*given)
    arrays = [tensor.detach().numpy() for tensor in (moved_q, moved_k)]

    def tables(some):
        found = {
            name: definition.Table(table.rows.detach().numpy(), table.first, table.beyond)
            for name, table in some.tables.items()
        }
        return found | ({} if some.q_rel is None else {"q_rel": some.q_rel.detach().numpy()})

    # A value for each key that only it has shows the weights, whose logarithms are the scores but
    # for one number per query.
    identity = torch.eye(9, dtype=torch.float64).expand(2, 2, 9, 9).numpy()
    if hasattr(terms, "axes"):
        axes = [definition.Axis(**tables(axis)) for axis in terms.axes]
        weights, _ = definition.grid_attention(
            *arrays, identity, axes=axes, shape=terms.shape, scale=scale
        )
    else:
        weights, _ = definition.attention(*arrays, identity, **tables(terms), scale=scale)
    return centred(torch.from_numpy(weights).log() - scale * q @ k.mT)


def centred(scores):
    return scores - scores.mean(-1, keepdim=True)


@each_assumed
def test_a_scheme_tells_the_scale_that_it_assumes(name):
    assert built(name).attention_scale == pytest.approx(ASSUMED[name][1], rel=1e-15)


@each_assumed
def test_logits_are_right_by_themselves(name):
    position, (q, k, x) = built(name), inputs()
    want = judged_logits(position, q, k, x, ASSUMED[name][1])
    got = position.logits(q, k, x if position.reads_input else None)
    assert_close(centred(got), want)


@each_assumed
def test_a_layer_takes_the_scale_from_its_position(name):
    position, scale = built(name), ASSUMED[name][1]
    torch.manual_seed(1)
    if isinstance(position, Grid):
        layers = [GridAttention(8, 2, position=position, scale=s).double() for s in (None, scale)]
        x = normal(2, 8, 3, 3)
    else:
        layers = [
            MultiheadAttention(8, 2, position=position, scale=s).double() for s in (None, scale)
        ]
        x = normal(2, 9, 8)
    layers[1].load_state_dict(layers[0].state_dict())
    one, other = (layer(x) if isinstance(position, Grid) else layer(x, x, x)[0] for layer in layers)
    assert torch.equal(one, other)


def test_what_goes_with_any_scale_has_none():
    for position in (Shaw(4, 3), Alibi(2), Grid(4, (3, 3)), RelativeLogits(5, 3, 2, 8)):
        assert position.attention_scale is None


def test_unscaled_rows_of_a_grid_are_divided_by_its_scale():
    q, k, _ = inputs()
    usual, own = (Grid(4, (3, 3), scaled=False, scale=s, dtype=torch.float64) for s in (None, 0.3))
    own.load_state_dict(usual.state_dict())
    assert_close(own.logits(q, k), usual.logits(q, k))
    assert own.extra_repr().endswith("scaled=False, scale=0.3")
    assert usual.extra_repr().endswith("scaled=False")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize(
    "make",
    [
        lambda scale: Grid(4, (3, 3), scale=scale),
        lambda scale: TransformerXL(4, 2, scale=scale),
        lambda scale: RelPosEmb2D((3, 3), 4, scale=scale),
    ],
)
def test_what_cannot_be_divided_by_is_named(make, scale):
    with pytest.raises(ValueError, match=f": scale must be a positive number, got {scale}"):
        make(scale)


def test_none_is_the_usual_scale():
    assert scale_or_default(None, 64) == 1 / 8
    assert scale_or_default(3.0, 64) == 3
