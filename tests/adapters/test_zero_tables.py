"""Each scheme at zero: the function is unchanged or said to change, and every table learns."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from relpos.adapters import add_positions
from relpos.positions import ContinuousBias, Shaw
from relpos.positions.base import Position
from tests.factories import normal
from tests.positions.test_every_scheme import SCHEMES

# What no table at zero can silence, by the scheme's name in SCHEMES.
CHANGES = {
    "deberta", "gated alibi", "alibi", "alibi causal", "alibi learned", "rotary",
    "rotary interleaved, a part", "rotary linear", "rotary yarn", "xpos", "kerple",
    "kerple power", "sandwich", "rotary and shaw values", "shaw, then rotary",
    "xl, then xpos, t5 and alibi", "gated t5 and kerple", "axial rotary", "continuous bias",
    "axial rotary and a window", "grid, then cosines", "rotary, then shaw",
    "rotary, then bidirectional", "rotary, then xl", "rotary, then other pairs",
    "rotary, then gates", "rotary, then relative logits", "xpos, then shaw values",
}  # fmt: skip


def attention_with(make, **arguments):
    """An attention of 4 heads, 4 wide, and what the report said of it."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64)
    before = copy.deepcopy(layer)
    ((_, said),) = add_positions(layer, lambda heads, head_dim: make(), **arguments).adapted
    return layer, before, said


@pytest.mark.parametrize("name", SCHEMES)
def test_the_function_is_unchanged_unless_the_report_says_that_it_changes(name):
    layer, before, said = attention_with(SCHEMES[name])
    x = normal(2, 15, 16)
    got, want = (each(x, x, x, need_weights=False)[0] for each in (layer, before))
    assert ("changes the function" in said) == (name in CHANGES)
    if name in CHANGES:
        assert not torch.allclose(got, want)
    else:
        assert_close(got, want)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_parameter_of_a_scheme_at_zero_is_moved_by_training(name):
    layer, _, _ = attention_with(SCHEMES[name])
    x, target = normal(2, 15, 16), normal(2, 15, 16, seed=1)
    first = {label: table.detach().clone() for label, table in layer.position.named_parameters()}
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (layer(x, x, x, need_weights=False)[0] - target).square().sum().backward()
        optimizer.step()
    for label, table in layer.position.named_parameters():
        assert (table != first[label]).any(), label


@pytest.mark.parametrize("name", SCHEMES)
def test_without_zeros_the_report_tells_what_the_drawn_tables_do(name):
    layer, before, said = attention_with(SCHEMES[name], zero=False)
    x = normal(2, 15, 16)
    got, want = (each(x, x, x, need_weights=False)[0] for each in (layer, before))
    assert ("changes the function" not in said) == torch.allclose(got, want) == (name == "none")


def test_a_constant_bias_that_a_prefix_goes_without_changes_the_function():
    layer, before, said = attention_with(
        lambda: ContinuousBias(4, (2, 7), hidden=8, cosine=False, prefix=1)
    )
    assert said == "ContinuousBias, changes the function: adds terms"
    x = normal(2, 15, 16)
    assert not torch.allclose(layer(x, x, x)[0], before(x, x, x)[0])


class Own(Position):
    """A scheme of one's own, around one that is known."""

    def __init__(self, start):
        super().__init__()
        self.shaw = Shaw(4, 3)
        self.start = nn.Parameter(torch.full((4,), start))

    def forward(self, q, k):
        q, k, terms = self.shaw(q, k)
        return q + self.start, k, terms


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_a_scheme_of_ones_own_keeps_its_numbers_and_is_told_by_what_it_does(start):
    layer, _, said = attention_with(lambda: Own(start))
    assert (layer.position.start == start).all()
    assert not layer.position.shaw.keys.any()
    assert said == ("Own, changes the function: changes the queries or keys" if start else "Own")


class Before(nn.Module):
    """Tells for each symbol which one came before it; blind to order without positions."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.symbols = nn.Linear(16, 6)

    def forward(self, symbols):
        return self.symbols(self.encoder(self.embedding(symbols)))


def losses(model, optimizer, steps=150):
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        symbols = torch.randint(6, (32, 12), generator=generator)
        logits = model(symbols)[:, 1:]
        loss = cross_entropy(logits.flatten(0, 1), symbols[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
def test_a_task_that_needs_positions_is_learned_with_the_optimizer_from_before():
    torch.manual_seed(0)
    model = Before()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    blind = losses(model, optimizer)[-1]
    # The frequencies of the symbols in its row are all that it can know.
    assert blind > 1.5
    add_positions(model, lambda heads, head_dim: Shaw(head_dim, max_distance=2))
    tables = [table for name, table in model.named_parameters() if ".position." in name]
    optimizer.add_param_group({"params": tables})
    found = losses(model, optimizer)
    assert all(table.abs().max() > 0 for table in tables)
    assert found[0] > 1.5
    assert found[-1] < 0.1
