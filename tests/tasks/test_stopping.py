"""Stopping by signals, in programs of their own, inside an operation that no handler interrupts."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.no_typecheck

# Imported by the commands in place of torch. The hash runs for minutes in C.
SLOW_IMPORT = """
import hashlib, os
from relpos_tasks.files import replacing
from relpos_tasks.stopping import ending_child_processes
children_end = lambda: print("children ended", flush=True)
with replacing(os.environ["KEPT"]) as partial, ending_child_processes(children_end):
    partial.write_text("half")
    print("here", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""
# A shell, or nohup, may have started the tests without these signals.
START = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.{handler})
from relpos_tasks.cli import main
main()
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a command, and waits until it is inside the operation."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(SLOW_IMPORT)
    (tmp_path / "kept.txt").write_text("whole")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("KEPT", str(tmp_path / "kept.txt"))
    started = []

    def run(*arguments, handler="default_int_handler"):
        process = subprocess.Popen(
            [sys.executable, "-c", START.format(handler=handler), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("by", "arguments", "line"),
    [
        (signal.SIGINT, ["evaluate", "here"], "relpos: stopped"),
        (
            signal.SIGTERM,
            ["train", "--position", "none"],
            "relpos: stopped; the same command goes on from the last checkpoint, if there is one",
        ),
        (signal.SIGHUP, ["generate", "here"], "relpos: stopped"),
    ],
)
def test_a_signal_ends_a_long_operation_at_once_with_one_line_and_no_unfinished_file(
    start, tmp_path, by, arguments, line
):
    process = start("music", *arguments)
    process.send_signal(by)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (128 + by, "children ended\n", f"{line}\n")
    assert (tmp_path / "kept.txt").read_text() == "whole"
    assert not list(tmp_path.glob(".part-*"))


def test_what_was_ignored_stays_ignored(start):
    process = start("music", "evaluate", "here", handler="SIG_IGN")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_the_processes_of_other_devices_say_nothing(start, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    process = start("music", "evaluate", "here")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[1] == ""


FORK = """
import os, signal, time
from relpos_tasks.stopping import stop_on_signals
stop_on_signals(lambda: "stopped")
reader, writer = os.pipe()
child = os.fork()
if not child:
    os.write(writer, b".")
    time.sleep(60)
os.read(reader, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
# Here the thread would stop this process too.
time.sleep(0.2)
"""


def test_a_fork_is_stopped_by_its_own_signals_alone():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{-signal.SIGTERM}\n", "")


def test_nothing_slow_is_imported_before_signals_are_listened_to():
    program = "import sys; from relpos_tasks.cli import main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"torch", "numpy", "typer", "rich"} & set(done.stdout.split())
