"""A call of a backend's operator, to be made again with other tensors."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from torch import Tensor

from ..terms import Terms
from .arguments import LINE_TENSORS, Arguments, arguments_of, mask_as_read
from .custom_op import CustomOp
from .inputs import Inputs

__all__ = ["OperatorCall"]

_numbers = count()


class OperatorCall:
    """All but the tensors of a call on a line of tokens, without documents and ranges of keys.

    Args:
        op: of the backend.
        inputs: a call, none of whose tensors is kept.
        **of_backend: as in `arguments_of`.
    """

    __slots__ = ("_common", "_op", "_seed_position", "_settings")

    def __init__(self, op: CustomOp, inputs: Inputs, **of_backend: Any) -> None:
        arguments = arguments_of(replace(inputs, mask=None), **of_backend)
        num_tensors = len(LINE_TENSORS)
        assert op.names[:num_tensors] == LINE_TENSORS
        self._op, self._settings = op, op.values(arguments)[num_tensors:]
        self._seed_position = op.names.index("seed") - num_tensors if inputs.dropout else None
        self._common: dict[str, Any] | None = None
        if not op.compiled:  # one that is compiled is given values alone
            left_out = {"terms", "seed", *LINE_TENSORS}
            common = {name: x for name, x in vars(arguments).items() if name not in left_out}
            self._common = common | {"alike": next(_numbers)}

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp.

        Tensors lie in memory as those of the first call did, and none is a subclass or seen by
        anybody (`may_pass_by_dispatcher`).
        """
        keys, queries, bias, values = terms.keys, terms.queries, terms.bias, terms.values
        tensors = (
            q, k, v,
            None if keys is None else keys.rows,
            None if queries is None else queries.rows,
            None if bias is None else bias.rows,
            None if values is None else values.rows,
            terms.q_rel,
            None if mask is None else mask_as_read(mask, q),
        )  # fmt: skip
        settings, seed = self._settings, None
        if self._seed_position is not None:
            seed = self._op.draw_seed(q)
            settings = [*settings]
            settings[self._seed_position] = seed
        arguments = None
        if self._common is not None:
            arguments = object.__new__(Arguments)  # its `__init__` would only keep them too
            named = zip(LINE_TENSORS, tensors, strict=True)
            vars(arguments).update(self._common, terms=terms, seed=seed, **dict(named))
        output, lse, *_ = self._op.run(arguments, [*tensors, *settings])
        return output, lse
