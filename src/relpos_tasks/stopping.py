"""Stopping at once on Ctrl-C, SIGTERM or a closed terminal, even inside one long operation.

A handler in Python runs between two of its operations, and one step of a training may be minutes in
C++. So a thread waits for the signals: the system writes their numbers to a socket the moment they
arrive, and torch's operations let other threads run. Whatever is being written is removed, and what
it was to replace stays, so that nothing has to be wound up.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .files import abandon_unfinished

__all__ = ["ending_child_processes", "stop_on_signals"]

_STDERR = 2
# What shows a terminal's cursor again, which progress bars hide, and leaves their line.
_SHOW_CURSOR = b"\x1b[?25h\n"

_end_child_processes: list[Callable[[], None]] = []


def stop_on_signals(words: Callable[[], str]) -> None:
    """End the process from now on when a signal asks for it, with status 128 + its number.

    What was ignored stays so: SIGHUP under `nohup`, Ctrl-C in a shell's background.

    Args:
        words: gives the line to leave on stderr; empty for none.
    """
    named = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    before = {number: signal.getsignal(number) for number in named if number}
    stops = {number for number, handler in before.items() if handler != signal.SIG_IGN}
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in stops:
        signal.signal(number, _leave_to_the_thread)

    def in_a_fork() -> None:
        # It has no such thread, and its signals are not this process's.
        signal.set_wakeup_fd(-1)
        for number in stops:
            signal.signal(number, before[number])

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_a_fork)

    def wait() -> None:
        # Other signals with a handler are written to the socket too. The thread keeps its other
        # end open.
        while writer.fileno() >= 0:
            number = reader.recv(1)[0]
            if number in stops:
                _stop(number, words())

    threading.Thread(target=wait, name="stop-on-signals", daemon=True).start()


@contextmanager
def ending_child_processes(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` if the process is stopped inside the block.

    Args:
        end: ends the processes that this one has started; called in another thread.
    """
    _end_child_processes.append(end)
    try:
        yield
    finally:
        _end_child_processes.remove(end)


def _leave_to_the_thread(*_: object) -> None:
    """Without a handler of ours the signal would end the process, or raise KeyboardInterrupt."""


def _stop(number: int, line: str) -> None:
    try:
        abandon_unfinished()
        for end in _end_child_processes:
            end()
        # A reader that has stopped reading must not keep this process alive.
        if line and select.select([], [_STDERR], [], 1.0)[1]:
            start = _SHOW_CURSOR if os.isatty(_STDERR) else b""
            os.write(_STDERR, start + f"{line}\n".encode())
    finally:
        os._exit(128 + number)
