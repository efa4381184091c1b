"""The ranks among which a sequence is cut: a process group, or a mesh of one or two dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed
from torch.distributed import GroupMember, ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ...errors import is_out_of_memory
from .not_compiled import not_compiled

__all__ = [
    "AnyGroup",
    "ExchangeError",
    "Ranks",
    "all_ranks",
    "check_device_of_group",
    "check_initialized",
    "exchange_device",
    "rank_and_size",
    "resolve_group",
]

AnyGroup = ProcessGroup | DeviceMesh

_NOT_AMONG = "{}: group must have this process among its ranks, got a {} without rank {}"


class ExchangeError(RuntimeError):
    """Another rank failed, left, or did not answer in time.

    Args:
        words: what to say.
        ranks: of the group whose rank it was; of one that came from another process, None.
    """

    def __init__(self, words: str, ranks: Ranks | None = None) -> None:
        super().__init__(words)
        self.ranks = ranks

    def __reduce__(self) -> tuple[type[ExchangeError], tuple[str]]:
        # A group cannot leave its process.
        return ExchangeError, (str(self),)


@dataclass(frozen=True)
class Ranks:
    """A group as this process sees it.

    Args:
        group: of all its processes.
        rank: of this process within the group.
        size: P, how many there are.
        mesh: of two dimensions whose ranks these are, one row of it after another; or None.
    """

    group: ProcessGroup
    rank: int
    size: int
    mesh: DeviceMesh | None = field(default=None, compare=False)

    def __deepcopy__(self, memo: dict[int, object]) -> Ranks:
        # A copied model is of the same processes.
        return self

    @property
    def given(self) -> AnyGroup:
        """What these are the ranks of."""
        return self.group if self.mesh is None else self.mesh

    @property
    def outer_and_inner(self) -> tuple[Ranks, Ranks] | None:
        """Of a mesh of two dimensions this rank's along the first, and those along the last."""
        if self.mesh is None:
            return None
        groups = [self.mesh.get_group(dim) for dim in (0, 1)]
        outer, inner = (
            Ranks(group, distributed.get_rank(group), distributed.get_world_size(group))
            for group in groups
        )
        return outer, inner

    def shares_ranks(self, other: Ranks) -> bool:
        """Whether two groups have several processes in common, as dimensions of a mesh have not."""
        own, others = (distributed.get_process_group_ranks(x.group) for x in (self, other))
        return len(set(own) & set(others)) > 1

    def global_rank(self, rank: int) -> int:
        """The number of a rank of this group, modulo P, among all processes there are."""
        return distributed.get_global_rank(self.group, rank % self.size)

    @contextmanager
    def exchanging(self, function: str, what: str) -> Iterator[None]:
        """Word what goes wrong in an exchange: another rank failed, or does not answer in time.

        Args:
            function: the public function on whose behalf it is made.
            what: is exchanged.
        """
        try:
            yield
        except ExchangeError:
            raise
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise ExchangeError(
                f"{function}: rank {self.rank} of {self.size} could not exchange {what}: another "
                "rank of the group failed, left, or did not get here within the time limit of the "
                "process group (`timeout=` where it was made); see what that rank says. Torch "
                f"says: {' '.join(str(error).split())}",
                self,
            ) from error


def resolve_group(function: str, group: AnyGroup, *, most_dims: int = 1) -> Ranks:
    """The ranks of a group.

    Args:
        function: the public function on whose behalf it is checked.
        group: a `ProcessGroup`, or a `DeviceMesh`. All ranks of a mesh must be here when one of
            two dimensions comes for the first time: the group of both is then made.
        most_dims: how many dimensions a mesh may have, 1 or 2.

    Raises:
        TypeError: if it is neither.
        ValueError: if the mesh has more dimensions, or, with two, ranks that do not follow each
            other; or if this process is not of the group.
        RuntimeError: if no process group is there.
    """
    check_initialized(function)
    mesh = None
    if isinstance(group, DeviceMesh):
        _check_mesh(function, group, most_dims)
        if group.ndim == 2:
            mesh, group = group, _group_of(_ascending_ranks(function, group))
        else:
            group = group.get_group()
    if group is GroupMember.NON_GROUP_MEMBER:  # what `new_group` gives other processes
        raise ValueError(_NOT_AMONG.format(function, "group", distributed.get_rank()))
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"{function}: group must be a ProcessGroup or a DeviceMesh, got {type(group).__name__}"
        )
    rank = distributed.get_rank(group)
    if rank < 0:
        raise ValueError(_NOT_AMONG.format(function, "group", distributed.get_rank()))
    return Ranks(group, rank, distributed.get_world_size(group), mesh)


def rank_and_size(function: str, group: AnyGroup) -> tuple[int, int]:
    """This process's rank, and how many there are: no group is made, so that others need not call.

    Args:
        function: as of `resolve_group`, like what it raises.
        group: that, or a mesh of two dimensions.
    """
    check_initialized(function)
    if isinstance(group, DeviceMesh) and group.ndim == 2:
        _check_mesh(function, group, 2)
        ranks = _ascending_ranks(function, group)
        return ranks.index(distributed.get_rank()), len(ranks)
    found = resolve_group(function, group, most_dims=2)
    return found.rank, found.size


def _check_mesh(function: str, mesh: DeviceMesh, most_dims: int) -> None:
    if mesh.ndim > most_dims:
        named = mesh.mesh_dim_names or tuple(range(mesh.ndim))
        dims = "one dimension" if most_dims == 1 else "one dimension or two"
        raise ValueError(
            f"{function}: group must be a mesh of {dims}, such as mesh[{named[-1]!r}], "
            f"got one of {named}"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(_NOT_AMONG.format(function, "mesh", distributed.get_rank()))


@not_compiled
def _ascending_ranks(function: str, mesh: DeviceMesh) -> list[int]:
    """The ranks of a mesh of two dimensions, one row after another, as those of a group lie."""
    ranks = mesh.mesh.flatten().tolist()
    if ranks != sorted(ranks):
        raise ValueError(
            f"{function}: group must be a mesh of two dimensions whose ranks ascend along the last "
            f"and from row to row, as those of init_device_mesh do, got {mesh.mesh.tolist()}"
        )
    return ranks


# By its ranks, each group that was made for a mesh, and the group of all processes at that time.
_GROUPS: dict[tuple[int, ...], tuple[ProcessGroup, ProcessGroup]] = {}


@not_compiled
def _group_of(ranks: list[int]) -> ProcessGroup:
    """The group of some ranks, made by them alone when they first ask for it."""
    everybody = distributed.group.WORLD
    assert everybody is not None
    if ranks == distributed.get_process_group_ranks(everybody):
        return everybody
    found = _GROUPS.get(tuple(ranks))
    if found is None or found[0] is not everybody:
        group = distributed.new_group(ranks, use_local_synchronization=True)
        assert isinstance(group, ProcessGroup)
        found = _GROUPS[tuple(ranks)] = everybody, group
    return found[1]


def check_initialized(function: str) -> None:
    """Raise a RuntimeError unless there are process groups."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise RuntimeError(
            f"{function}: there must be a process group, which torch.distributed.init_process_group"
            " makes under torchrun, got none"
        )


def check_device_of_group(function: str, x: Tensor, group: ProcessGroup) -> None:
    """Raise a ValueError unless a group's processes can exchange tensors where `x` lies."""
    devices = _devices(group)
    if x.device.type not in devices:
        raise ValueError(
            f"{function}: q must lie where the process group exchanges tensors "
            f"({' or '.join(devices)}), got {x.device.type}"
        )


def all_ranks(function: str) -> Ranks:
    """All processes there are.

    Args:
        function: as of `resolve_group`.

    Raises:
        RuntimeError: if no process group is there.
    """
    # torch has None there before `init_process_group`, which is refused in words.
    return resolve_group(function, distributed.group.WORLD)  # type: ignore[arg-type]


def exchange_device(group: ProcessGroup) -> torch.device:
    """Where tensors lie that are exchanged without being anybody's input."""
    devices = _devices(group)
    if "cpu" in devices:
        return torch.device("cpu")
    return torch.device(devices[0], torch.accelerator.current_device_index())


def _devices(group: ProcessGroup) -> list[str]:
    """The kinds of devices whose tensors are exchanged: of "cpu:gloo,cuda:nccl" both."""
    return [each.partition(":")[0] for each in distributed.get_backend_config(group).split(",")]
