"""Before the first exchange: whether all ranks ask for the same; and after: whether all succeeded.

One small exchange each. Ranks that went on with different arguments would wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NoReturn

import torch
from torch import distributed

from .exchange import gather_numbers, timed
from .group import ExchangeError, Ranks, check_initialized, exchange_device

__all__ = ["Outcome", "agree", "fail_together"]

# Of every agreement, so that ranks in different ones understand each other.
_NUMBERS = 8


def agree(
    ranks: Ranks,
    function: str,
    facts: Mapping[str, object],
    numbers: tuple[int, ...],
    error: Exception | None = None,
) -> list[tuple[int, ...]]:
    """The numbers of every rank, once it is sure that all ranks have the same facts.

    Args:
        ranks: of the group.
        function: the public function on whose behalf it is asked.
        facts: by what users call them: what must be the same.
        numbers: what may differ, 8 of them at most.
        error: what this rank has against its arguments; it is raised here, and the others are told.

    Raises:
        ValueError: on every rank, naming the first fact that differs.
        RuntimeError: if another rank has an error, or does not answer, or there is no process group
            any more.
    """
    check_initialized(function)
    facts = {"the function that is called": function, **facts}
    words = repr(sorted((name, repr(fact)) for name, fact in facts.items()))
    digest = int.from_bytes(blake2b(words.encode(), digest_size=7).digest(), "big")
    device = exchange_device(ranks.group)
    with ranks.exchanging(function, "its arguments"):
        padding = [0] * (_NUMBERS - len(numbers))
        said = gather_numbers(ranks, [error is not None, digest, *numbers, *padding], device)
    if any(failed for failed, *_ in said):
        _raise_found(ranks, function, error)
    if any(of_rank[1] != digest for of_rank in said):
        _raise_difference(ranks, function, facts)
    return [tuple(of_rank[2 : 2 + len(numbers)]) for of_rank in said]


@contextmanager
def fail_together(ranks: Ranks, function: str, *, check: bool) -> Iterator[None]:
    """What fails within, where nothing is exchanged, is told to others at their next agreement.

    Args:
        ranks: of the group.
        function: the public function.
        check: whether there is such an agreement.
    """
    try:
        yield
    except Exception as error:
        if check:
            agree(ranks, function, {}, (), error)
        raise


def _raise_difference(ranks: Ranks, function: str, facts: Mapping[str, object]) -> None:
    found: list[Any] = [None] * ranks.size
    told = {name: repr(fact) for name, fact in facts.items()}
    with ranks.exchanging(function, "its arguments"):
        distributed.all_gather_object(found, told, group=ranks.group)
    for rank, other in enumerate(found):
        for name in found[0] | other:
            first, second = found[0].get(name, "nothing"), other.get(name, "nothing")
            if first != second:
                raise ValueError(
                    f"{function}: {name} must be the same on every rank of the group, got {first} "
                    f"on rank 0 and {second} on rank {rank}"
                )


def _raise_found(ranks: Ranks, function: str, error: Exception | None) -> None:
    found: list[Any] = [None] * ranks.size
    words = None if error is None else f"{type(error).__name__}: {' '.join(str(error).split())}"
    with ranks.exchanging(function, "what went wrong"):
        distributed.all_gather_object(found, words, group=ranks.group)
    if error is not None:
        raise error
    rank, words = next((n, said) for n, said in enumerate(found) if said is not None)
    raise ExchangeError(f"{function}: rank {rank} of {ranks.size} failed: {words}", ranks)


class Outcome:
    """What became of the computations of a call, none of which may leave other ranks waiting.

    Args:
        ranks: of the group.
        function: the public function.
        check: whether the ranks tell each other; else an error is raised where it happens, and
            the others wait for the time limit of their group.
    """

    def __init__(self, ranks: Ranks, function: str, *, check: bool) -> None:
        self._ranks, self._function, self._check = ranks, function, check
        self._error: Exception | None = None

    def attempt(self, compute: Callable[[], None]) -> None:
        """Compute, unless something has failed; what fails is kept for `raise_together`."""
        if self._error is not None:
            return
        with timed("compute"):
            try:
                compute()
            except ExchangeError:
                raise
            except Exception as error:
                if not self._check:
                    raise
                self._error = error

    def fail(self, error: Exception) -> NoReturn:
        """Raise an error of this rank alone, and tell the others what it was.

        Args:
            error: of what was computed; one that came of these ranks' own exchange they know.
        """
        if not (isinstance(error, ExchangeError) and error.ranks == self._ranks):
            self._error = error
            self.raise_together()
        raise error

    def raise_together(self) -> None:
        """Raise on every rank if one has failed."""
        if not self._check:
            return
        device = exchange_device(self._ranks.group)
        own = torch.tensor([int(self._error is not None)], device=device)
        with self._ranks.exchanging(self._function, "whether all went well"):
            distributed.all_reduce(own, distributed.ReduceOp.MAX, group=self._ranks.group)
        if own.item():
            _raise_found(self._ranks, self._function, self._error)
