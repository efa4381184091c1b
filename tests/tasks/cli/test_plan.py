"""`relpos plan`: what it prints, and what it refuses."""

import pytest

from benchmarks.files import load
from benchmarks.measure.distributed import formula_mib
from relpos.distributed.cost import PLAN_ERROR


def test_a_million_tokens_on_64_devices(relpos):
    status, out, err = relpos("plan", "--length", 10**6, "--ranks", 64, "--heads", 16)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("1,000,000 tokens on 64 devices, 15,625 each; 16 query and 16 key")
    assert "not possible: 16 heads are fewer than the ranks" in lines[2]
    assert lines[5] == "a ring hides what it sends from 19,200 tokens a device on"
    assert lines[7] == "fastest: method='ring', layout='zigzag'"
    assert lines[8].startswith("faster on a mesh of 32 x 2 (--inner 2): method='ring', layout='zi")
    assert len(lines) == 9


def test_a_mesh_of_two_dimensions(relpos):
    sizes = ["--length", 10**6, "--ranks", 64, "--heads", 16, "--inner", 8]
    lines = relpos("plan", *sizes, "--inner-bandwidth", 4e11)[1].splitlines()
    assert lines[0].startswith("1,000,000 tokens on 64 devices, 15,625 each, in a mesh of 8 x 8; ")
    assert "not possible: 16 heads are fewer than the ranks" in lines[2]
    assert "sends 1.04 GiB + 2.95 GiB" in lines[4]
    assert lines[5] == "a ring hides what it sends from 2,400 tokens a device on"
    assert lines[-1] == "fastest: method='ring', layout='zigzag'"
    assert lines[4] != relpos("plan", *sizes)[1].splitlines()[4]
    # Which mesh is the fastest depends on it too.
    near = relpos("plan", *sizes[:-2], "--inner-bandwidth", 4e11)[1].splitlines()
    alike = relpos("plan", *sizes[:-2])[1].splitlines()
    assert near[:8] == alike[:8]
    assert near[8].startswith("faster on a mesh of 32 x 2 (--inner 2): method='ring'")
    assert near[8] != alike[8]


def test_a_mesh_of_inner_devices_alone_is_by_heads(relpos):
    sizes = ["--length", 10**5, "--ranks", 8, "--heads", 16, "--inner", 8]
    lines = relpos("plan", *sizes, "--bandwidth", 1e9, "--inner-bandwidth", 4e11)[1].splitlines()
    assert lines[2].split()[1:6] == lines[4].split()[1:6]  # times and what is sent
    assert "hides" not in "".join(lines)
    assert lines[-1] == "fastest: method='heads', layout='zigzag'"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--inner", 7], "--inner: must divide 64 ranks, got 7"),
        (["--inner", 32], "--inner: must be at most 16 heads, got 32"),
        (["--inner", 2, "--inner-bandwidth", 0], "--inner-bandwidth: must be in 1..1e+30, got 0"),
    ],
)
def test_wrong_meshes_are_refused(relpos, options, words):
    status, out, err = relpos("plan", "--length", 10**6, "--ranks", 64, "--heads", 16, *options)
    assert (status, out) == (2, "")
    assert words in err


def test_a_window_ends_a_ring_early(relpos):
    sizes = ["--length", 10**6, "--ranks", 64, "--heads", 16]
    lines = relpos("plan", *sizes, "--window", 4096)[1].splitlines()
    assert lines[0].endswith("causal, under a window of 4,096 tokens")
    # To one rank of 63: keys and values of 15,625 tokens, then gradients of them twice in float32.
    assert "sends 122 MiB + 610 MiB" in lines[4]
    assert lines[-1] == "fastest: method='ring', layout='contiguous'"
    everything = relpos("plan", *sizes, "--window", 10**6)[1].splitlines()
    assert "fastest: method='ring', layout='zigzag'" in everything  # keys go all the way round
    assert [line.partition(",")[0] for line in everything[2:5]] == [
        line.partition(",")[0] for line in relpos("plan", *sizes)[1].splitlines()[2:5]
    ]


@pytest.mark.parametrize(
    ("options", "last"),
    [
        # A ring takes 8.98 s and 5.25 GiB, heads 9.02 s and 4.29 GiB.
        ([], "fastest: method='ring'"),
        (["--memory", 5.3], "fastest of those that fit 5.3 GiB: method='ring'"),
        (["--memory", 4.4], "fastest of those that fit 4.4 GiB: method='heads'"),
        (["--bandwidth", 1e8], "fastest: method='heads'"),
        (["--memory", 0.01], "none fits 0.01 GiB: heads needs 4.29 GiB; take more devices, or "),
    ],
)
def test_what_fits_is_chosen(relpos, options, last):
    sizes = ["--length", 10**6, "--ranks", 8, "--heads", 16, "--kv-heads", 4, "--no-causal"]
    found = relpos("plan", *sizes, *options)[1].splitlines()[-1]
    assert found == last if last.startswith("fastest") else found.startswith(last)


def test_more_devices_than_tokens(relpos):
    lines = relpos("plan", "--length", 1, "--ranks", 10**10, "--heads", 16)[1].splitlines()
    assert lines[0].startswith("1 token on 10000000000 devices, 0 each or one more; 16 query")
    assert "nan" not in "".join(lines)


def test_its_error_is_the_one_that_was_measured(relpos):
    result = load("distributed.json")
    errors = [row["error"] for row in result["plan"]["rows"]]
    errors += [formula_mib(row) / row["peak_mib"] - 1 for row in result["memory"]]
    assert PLAN_ERROR - 0.1 < max(map(abs, errors)) <= PLAN_ERROR
    out = relpos("plan", "--length", 64, "--ranks", 2, "--heads", 2)[1]
    assert f"these times and tensors were up to {PLAN_ERROR:.0%} off" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kv-heads", 3], "--kv-heads: must divide 16 heads, got 3"),
        (["--flops", 0], "--flops: must be in 1..1e+30, got 0"),
        (["--bandwidth", "nan"], "--bandwidth: must be in 1..1e+30, got nan"),
        (["--latency", -1], "--latency: must be in 0..1e+06, got -1"),
        (["--flops", 1e-320], "--flops: must be in 1..1e+30, got"),
        (["--latency", 1e308], "--latency: must be in 0..1e+06, got 1e+308"),
        (["--ranks", 10**10, "--heads", 10**8], "--heads: must be at most 65536, got 100000000"),
        (["--length", 10**400], "--length"),
        (["--window", 0], "--window"),
        (["--memory", 0], "--memory: must be above 0, got 0"),
        (["--dtype", "int8"], "--dtype"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(relpos, options, words):
    status, out, err = relpos("plan", "--length", 64, "--ranks", 2, "--heads", 16, *options)
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
