"""Processes of one thread each that stay alive from test to test, in a process group of gloo.

A start from nothing takes seconds, a question milliseconds: `Pool(2).run(function, *args)` calls a
function of a module in every process and returns what each returns, or raises what one of them
raised.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch
from torch import distributed
from torch.multiprocessing import get_context

__all__ = ["Pool"]

_PATIENCE = 120  # seconds for an answer


class Pool:
    """So many ranks.

    Args:
        size: P.
        timeout: of the process group, in seconds: how long a rank waits for others.
        start: "spawn" starts each process anew. "forkserver" forks them from one that has imported
            what `multiprocessing.set_forkserver_preload` names; environment variables are those of
            the first time.
    """

    def __init__(
        self, size: int, timeout: float = 60, start: Literal["spawn", "forkserver"] = "spawn"
    ) -> None:
        self.size, self._timeout = size, timeout
        self._context: Any = get_context(start)
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._start()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        meeting = f"file://{Path(self._folder.name) / 'meeting'}"
        for rank in range(self.size):
            own, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(rank, self.size, meeting, self._timeout, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(own)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(rank, size, *args)` returns in each process.

        Raises:
            AssertionError: with the traceback of the first rank in which it failed.
        """
        found = self.outcomes(function, *args)
        if any(failed for failed, _ in found):
            # Others may wait for what does not come any more.
            self.close()
            self._start()
        for rank, (failed, words) in enumerate(found):
            assert not failed, f"on rank {rank} of {self.size}:\n{words}"
        return [answer for _, answer in found]

    def outcomes(self, function: Callable[..., Any], *args: Any) -> list[tuple[bool, Any]]:
        """For each process whether it failed, and its traceback or what it returned."""
        for pipe in self._pipes:
            pipe.send((function, args))
        found: dict[int, tuple[bool, Any]] = {}
        while len(found) < self.size:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            ready = wait(waiting, timeout=_PATIENCE)
            if not ready:
                self.close()
                self._start()
                raise AssertionError(f"ranks {set(range(self.size)) - set(found)} do not answer")
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    found[rank] = self._pipes[rank].recv()
                except EOFError:
                    found[rank] = (True, "the process ended")
        return [found[rank] for rank in range(self.size)]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()
        self._pipes, self._processes = [], []
        self._folder.cleanup()


def _serve(rank: int, size: int, meeting: str, timeout: float, pipe: Connection) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=size,
        timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = (False, function(rank, size, *args))
        except BaseException:
            answer = (True, traceback.format_exc())
        pipe.send(answer)
