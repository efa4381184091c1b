"""`attn_implementation="relpos"` beside models' own implementations, over those of transformers.

Of every model that transformers lists for a kind the first class, made small, in float32: outputs
at real tokens with padding on either side, between tokens and without, and greedily generated
texts.
"""

from __future__ import annotations

import math
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from typing import cast as typed

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.utils import logging

from relpos.adapters import attn_implementation, register_attn_implementation

from ..workloads.small_models import IMAGE, VOCABULARY, NotSmallError, small_model

__all__ = ["AGREES", "KINDS", "measure_sweep"]

KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    "encoder and decoder": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    "images": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
}
#: The largest difference of float32, as a part of the largest output.
AGREES = 1e-3

_LENGTH = 20
_PADDING = {"none": slice(0), "left": slice(6), "right": slice(-6, None), "between": slice(4, 9)}
_SECONDS = 60  # for one model


def measure_sweep(kind: str, names: list[str] | None = None) -> list[dict]:
    """A row for each class: what came of it, the largest difference, and the reason if any.

    Args:
        kind: one of `KINDS`.
        names: of models (`model_type`), these alone; None: all.
    """
    register_attn_implementation()
    rows = []
    for make_config, found in KINDS[kind].items():
        name = make_config.model_type
        if names and name not in names:
            continue
        make: Any = found[0] if isinstance(found, tuple) else found
        row = {"model": name, "class": make.__name__, "kind": kind}
        try:
            with _limited(_SECONDS), _counted() as calls, _quiet():
                row |= _outcome(make_config, make, kind)
                if row["outcome"] in ("agrees", "differs") and not calls:
                    row["outcome"] = "no attention"
        except (Exception, TimeIsOverError) as error:  # the next class may run all the same
            row |= {"outcome": "fails", "reason": _words(error)}
        rows.append(row)
        print(f"{name:28} {row['outcome']:12} {row.get('difference', '')!s:10.8} "
              f"{row.get('reason', '')[:150]}", flush=True)  # fmt: skip
    return rows


def _outcome(make_config: Any, make: type[PreTrainedModel], kind: str) -> dict:
    if not make._can_set_attn_implementation():
        return {"outcome": "no interface"}
    try:
        model = small_model(make_config, make, lambda model: _outputs(model, kind, "none"))
    except (NotSmallError, ImportError) as error:
        return {"outcome": "not made", "reason": _words(error)}
    worst, implementations = 0.0, ["eager", "sdpa"] if make._supports_sdpa else ["eager"]
    for padding in ("none",) if kind == "images" else _PADDING:
        outputs = {}
        for name in (*implementations, "relpos"):
            model.set_attn_implementation(name)
            outputs[name] = _outputs(model, kind, padding)
        ours = outputs.pop("relpos")
        # They differ where eager's masks are finite, and where SDPA leaves something out.
        found = [float((ours - x).abs().max() / x.abs().max()) for x in outputs.values()]
        worst = max(worst, min((x for x in found if math.isfinite(x)), default=math.inf))
    row = {"outcome": "agrees" if worst <= AGREES else "differs", "difference": worst}
    if model.can_generate():
        row["texts"] = _texts(model)
        if row["texts"] == "differ":
            row["outcome"] = "differs"
    return row


def _tokens(padding: str) -> tuple[Tensor, Tensor]:
    """Two texts, and which of their tokens are no padding."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (2, _LENGTH), generator=generator)
    tokens = torch.ones_like(ids)
    tokens[1, _PADDING[padding]] = 0
    return ids, tokens


@torch.no_grad()
def _outputs(model: PreTrainedModel, kind: str, padding: str) -> Tensor:
    """The outputs at real tokens."""
    if kind == "images":
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(2, 3, IMAGE, IMAGE, generator=generator)
        return model(pixel_values=pixels).logits
    ids, tokens = _tokens(padding)
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": tokens}
    if model.config.is_encoder_decoder:
        return model(**given, decoder_input_ids=ids[:, :9]).logits
    return model(**given).logits[tokens.bool()]


@torch.no_grad()
def _texts(model: PreTrainedModel) -> str:
    """Whether the same text is generated: "equal", "differ", or why the model generates none."""
    ids, tokens = _tokens("left")
    found = []
    model.generation_config.eos_token_id = None
    for name in ("eager", "relpos"):
        model.set_attn_implementation(name)
        try:
            found.append(typed(Any, model).generate(
                ids, attention_mask=tokens, max_new_tokens=12, do_sample=False,
                decoder_start_token_id=1,
            ))  # fmt: skip
        except Exception as error:
            if name == "relpos":
                raise
            return _words(error)
    return "equal" if torch.equal(*found) else "differ"


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


class TimeIsOverError(BaseException):
    """Not to be taken for an error of a model."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raise in what takes longer."""

    def over(*_: object) -> None:
        raise TimeIsOverError(f"must end within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _counted() -> Iterator[list[None]]:
    """An entry for each time that a model attends by relpos."""
    calls: list[None] = []

    def attend(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        calls.append(None)
        return attn_implementation.attention_function(*args, **kwargs)

    AttentionInterface.register("relpos", attend)
    try:
        yield calls
    finally:
        register_attn_implementation()


@contextmanager
def _quiet() -> Iterator[None]:
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
