"""`relpos plan`: what it prints, and what it refuses."""

import pytest


def test_a_million_tokens_on_64_devices(relpos):
    status, out, err = relpos("plan", "--length", 10**6, "--ranks", 64, "--heads", 16)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("1,000,000 tokens on 64 devices, 15,625 each; 16 query and 16 key")
    assert "not possible: 16 heads are fewer than the ranks" in lines[2]
    assert lines[-2] == "a ring hides what it sends from 19,200 tokens a device on"
    assert lines[-1] == "fastest: method='ring', layout='zigzag'"


def test_what_fits_is_chosen(relpos):
    options = ["--length", 10**6, "--ranks", 8, "--heads", 16, "--kv-heads", 4, "--no-causal"]
    assert relpos("plan", *options)[1].splitlines()[-1].startswith("fastest: method=")
    out = relpos("plan", *options, "--memory", 0.01)[1]
    assert out.splitlines()[-1].startswith("none fits 0.01 GiB: ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kv-heads", 3], "--kv-heads: must divide 16 heads, got 3"),
        (["--flops", 0], "--flops: must be finite and above 0, got 0"),
        (["--bandwidth", "nan"], "--bandwidth: must be finite and above 0, got nan"),
        (["--latency", -1], "--latency: must be finite and at least 0, got -1"),
        (["--memory", 0], "--memory: must be above 0, got 0"),
        (["--dtype", "int8"], "--dtype"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(relpos, options, words):
    status, out, err = relpos("plan", "--length", 64, "--ranks", 2, "--heads", 16, *options)
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
