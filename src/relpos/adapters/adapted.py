"""How one module is adapted: its class becomes a subclass that reads the same parameters.

`module.__class__ = adapted_class(type(module), Adaptation)` changes the forward and nothing else.
No parameter, buffer, hook or attribute is touched, so the state dict stays as it was, and assigning
the original class again undoes it. The subclass carries the original's name: what asks a
module for the name of its class (output recording, `architectures` in a configuration) gets the
answer that it got before. It is made when it is needed and cannot be found by its name, so a pickle
or a copy holds the original class and the adaptation and makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor, nn

from ..ops.locality import Window
from ..terms import Terms

__all__ = ["Adapted", "adapted_class", "is_adapted_class", "original_class"]


class Adapted(nn.Module):
    """A base of what stands in for an attention module: a forward, and what it can take.

    A subclass for a family of models overrides the methods that it needs, `forward` most often, and
    calls projections as modules, `self.q_proj(x)`, so that what wraps them (LoRA) stays in force.

    Its annotations are the attributes that it reads. A module that lacks one is left; what only
    some modules of the class have is annotated as `Any`.
    """

    #: What the report says of the module; empty for one without attention of its own, which is not
    #: listed (an encoder that builds masks).
    scheme: ClassVar[str] = ""
    #: The parameters of the original's methods that are overridden or called, as they were when
    #: this was written; a class that has others is left alone. `cache` and `past_key_values`, as
    #: transformers called it before 5.24, are one.
    signatures: ClassVar[dict[str, tuple[str, ...]]] = {}
    #: Whether masks come from the functions of transformers' `masking_utils`, which the name of an
    #: implementation in the module's `config` chooses. The original must attend by the function
    #: of that name too, which makes narrow masks whole for modules that are not adapted.
    masks_by_config: ClassVar[bool] = False
    #: Whether every self-attention of that configuration says by `is_causal` what it is, so that
    #: causal masks may be narrow.
    causal_by_module: ClassVar[bool] = False
    #: Whether the modules of its model hand each other what only adapted ones read (a table in
    #: place of a bias), so that all of them are adapted or none: of one file of the original, or
    #: all that say the same word here.
    together: ClassVar[bool | str] = False
    #: By the names of their attributes, modules in this one, most often of its tables, or None, and
    #: what each is adapted by, with it or not at all: `unsupported` of that says for which classes.
    parts: ClassVar[dict[str, type[Adapted]]] = {}
    #: The attribute that says how probable it is that a weight is dropped, as a number or a module
    #: that has it; empty: relpos drops none.
    weights_dropout: ClassVar[str] = "dropout"
    #: The offsets `-left..right` that take part; None: all.
    window: ClassVar[Window | None] = None
    #: What attends in place of `relpos.attention` where a sequence lies on several devices
    #: (`relpos.distributed.ContextParallel`).
    attend_elsewhere: Callable[..., Any] | None = None
    #: How many heads that takes at least in one call: a model may go through its heads in parts.
    least_heads: int = 1

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A module made by the class of an adapted one is an original: nothing in it is adapted."""
        if (args or kwargs) and is_adapted_class(cls):
            return original_class(cls)(*args, **kwargs)
        return super().__new__(cls)

    @classmethod
    def prepare(cls) -> None:
        """Done before a module is adapted, and before one is unpickled."""
        if cls.masks_by_config:
            # transformers is there, or there would be no such module.
            import_module(".attention_function", __package__).register()

    @classmethod
    def applies(cls, module: Any) -> bool:
        """Whether this module is relative attention at all; if not, it is left without a word.

        Args:
            module: of the original class.
        """
        return True

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        """Why this module, still of the original class, cannot be adapted; None if it can.

        Args:
            module: of the original class.
        """
        return None

    @classmethod
    def parts_of(cls, module: Any) -> dict[str, type[Adapted]]:
        """By their names in this module, those that are adapted with it, and by what.

        Args:
            module: of the original class.
        """
        return {name: own for name, own in cls.parts.items() if getattr(module, name) is not None}

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        """Whether this module attends both ways along a line of tokens, so that it can be local.

        Args:
            module: of the original class.
        """
        return False

    def refuses_cut(self) -> str | None:
        """Why it cannot be given some tokens of a sequence whose others are on other devices.

        None if it can: its masks and tables do not depend on how many tokens it sees.
        """
        return "masks or positions are made from the tokens that it sees" if self.scheme else None

    @classmethod
    def described(cls, module: Any) -> str:
        """What the report says of this module, when it is adapted.

        Args:
            module: of the original class.
        """
        return cls.scheme

    def bias_terms(self, position_bias: Tensor) -> Terms | None:
        """The tables that a `position_bias`, handed to the attention function, stands for.

        Args:
            position_bias: as the module made it; None is returned if it is no more than it seems.
        """
        return None

    def original_forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's forward, for a call that relpos cannot compute.

        Args:
            args: the call's.
            kwargs: the call's.

        Raises:
            ValueError: if the module was adapted with a window, which the original does not have,
                or its sequence lies on several devices, of which the original knows nothing.
        """
        self.refuse_window()
        if self.attend_elsewhere is not None:
            raise ValueError(
                f"{type(self).__name__}: cut by ContextParallel, it must be called with what "
                "relpos computes, got arguments or an attention implementation for which the "
                "original runs, which would see the tokens of one rank"
            )
        return super().forward(*args, **kwargs)

    def refuse_window(self) -> None:
        """Raise for a call that relpos cannot compute, if it would see more than the window.

        Raises:
            ValueError: if the module was adapted with one.
        """
        if self.window is not None:
            raise ValueError(
                f"{type(self).__name__}: adapted with window={self.window}, it must be called "
                "with what relpos computes, got arguments for which the original runs, which has "
                "no window; restore it first"
            )

    def extra_repr(self) -> str:
        """The original's, and that relpos computes it."""
        window = "" if self.window is None else f", window={self.window}"
        relpos = f"relpos={self.described(self)!r}{window}" if self.scheme else ""
        parts = [super().extra_repr(), relpos]
        return ", ".join(part for part in parts if part)

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls = type(self)
        if not is_adapted_class(cls):
            # FSDP, parametrizations: it is for them to say how.
            return super().__reduce_ex__(protocol)
        return _rebuild, (original_class(cls), _adaptation(cls), self.window), self.__getstate__()


@cache
def adapted_class(
    original: type[nn.Module], adaptation: type[Adapted], window: Window | None = None
) -> type[nn.Module]:
    """`original` with the methods of `adaptation`; the same class for the same arguments.

    Args:
        original: the class of the module that is to be adapted.
        adaptation: what replaces its methods.
        window: the offsets `-left..right` that take part, in tokens; None: all.
    """
    names = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    own = {"window": window, "_original_class": original, "_adaptation": adaptation}
    return type(original.__name__, (adaptation, original), names | own)


def is_adapted_class(cls: type[nn.Module]) -> bool:
    """Whether a class was made by `adapted_class`, not a subclass that others made of one.

    Args:
        cls: of a module.
    """
    return "_original_class" in cls.__dict__


def original_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The class that an adapted one stands in for.

    Args:
        cls: the class of an adapted module.
    """
    return cls.__dict__["_original_class"]


def _adaptation(cls: type[nn.Module]) -> type[Adapted]:
    return cls.__dict__["_adaptation"]


def _rebuild(
    original: type[nn.Module], adaptation: type[Adapted], window: Window | None
) -> nn.Module:
    """An adapted module without its state, for `copy` and `pickle`."""
    adaptation.prepare()
    cls = adapted_class(original, adaptation, window)
    return cls.__new__(cls)
