"""What all the learned schemes share."""

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import Bidirectional, Huang, Shaw
from tests.factories import qkv

SCHEMES = [Shaw, Huang, Bidirectional]
each_scheme = pytest.mark.parametrize("scheme", SCHEMES)


@each_scheme
def test_queries_and_keys_pass_through(scheme):
    q, k, _ = qkv(3, 7)
    q_, k_, _ = scheme(5, 4)(q, k)
    assert q_ is q
    assert k_ is k


@each_scheme
def test_rows_start_symmetric_around_zero_with_unit_length(scheme):
    torch.manual_seed(0)
    for rows in scheme(64, 200, 4).parameters():
        assert abs(rows.mean()) < 0.003
        assert_close(rows.square().sum(-1).mean(), torch.tensor(1.0), rtol=0.02, atol=0)
        assert 0.48 < (rows < 0).float().mean() < 0.52


@each_scheme
def test_heads_have_tables_of_their_own(scheme):
    position = scheme(5, 4, 2, dtype=torch.float64)
    q, k, v = qkv(6, 6)
    before = relpos.attention(q, k, v, position(q, k)[2], causal=True)
    with torch.no_grad():
        for rows in position.parameters():
            rows[1] += 1
            rows[1, 0] -= 3
    after = relpos.attention(q, k, v, position(q, k)[2], causal=True)
    assert_close(after[:, 0], before[:, 0])
    assert not torch.allclose(after[:, 1], before[:, 1])


@each_scheme
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_agree_and_share_nothing(scheme, clone):
    position = scheme(5, 4, dtype=torch.float64)
    other = clone(position)
    for rows, others in zip(position.parameters(), other.parameters(), strict=True):
        assert torch.equal(rows, others)
        assert rows.data_ptr() != others.data_ptr()


@each_scheme
def test_a_state_dict_goes_round(scheme):
    position, other = scheme(5, 4, 2), scheme(5, 4, 2)
    other.load_state_dict(position.state_dict())
    assert all(map(torch.equal, position.parameters(), other.parameters()))


@each_scheme
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_and_device_are_taken(scheme, dtype):
    position = scheme(5, 4, device="meta", dtype=dtype)
    assert {rows.dtype for rows in position.parameters()} == {dtype}
    assert {rows.device.type for rows in position.parameters()} == {"meta"}


@each_scheme
def test_rows_receive_gradients_through_attention(scheme):
    position = scheme(5, 4, dtype=torch.float64)
    q, k, v = qkv(9, 9)
    relpos.attention(q, k, v, position(q, k)[2], causal=True).square().sum().backward()
    for rows in position.parameters():
        assert rows.grad.isfinite().all()
        assert rows.grad.abs().sum() > 0


@each_scheme
def test_attention_depends_on_offsets_only(scheme):
    position = scheme(5, 4, dtype=torch.float64)
    q, k, v = qkv(6, 6)
    terms = position(q, k)[2]
    alone = relpos.attention(q, k, v, terms, causal=True)
    # The same tokens eleven positions further on, those before them hidden.
    more = [torch.cat((torch.randn(2, 2, 11, 5, dtype=torch.float64), x), 2) for x in (k, v)]
    later = relpos.attention(q, *more, terms, causal=True, mask=torch.arange(17) >= 11)
    assert_close(later, alone)


@each_scheme
def test_repr_tells_the_offsets(scheme):
    assert "head_dim=5, offsets=-" in repr(scheme(5, 4))


@each_scheme
@pytest.mark.no_typecheck
def test_queries_that_do_not_fit_are_named(scheme):
    name = scheme.__name__
    q, k, _ = qkv(3, 3, d=6)
    with pytest.raises(relpos.ShapeError, match=rf"{name}: q must be \(b, h, i, d\) with d=5, got"):
        scheme(5, 4)(q, k)
    with pytest.raises(relpos.ShapeError, match=rf"{name}: k must be \(b, g, j, d\) with d=6, got"):
        scheme(6, 4)(q, k[..., :5])
    with pytest.raises(relpos.ShapeError, match=rf"{name}: q must be .* with h=3, d=6, got"):
        scheme(6, 4, 3)(q, k)


@each_scheme
@pytest.mark.parametrize(("head_dim", "heads", "named"), [(0, 1, "head_dim"), (4, 0, "heads")])
def test_bad_sizes_are_named(scheme, head_dim, heads, named):
    with pytest.raises(ValueError, match=f"{scheme.__name__}: {named} must be an integer >= 1"):
        scheme(head_dim, 4, heads)
