"""`attn_implementation="relpos"` beside models' own implementations, over those of transformers.

Of every model that transformers lists for a kind the first class, made small, in float32: outputs
at real tokens with padding on either side, between tokens and without, what becomes of images
before they join a text, and greedily generated texts. A model whose outputs stay as they are when
attention gives something else is not counted among those that agree.
"""

from __future__ import annotations

import math
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from typing import cast as typed

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.utils import logging

from relpos.adapters import attn_implementation, register_attn_implementation

from ..workloads.small_models import NotSmallError, small_model
from ..workloads.sweep_inputs import PADDING, candidates, image_features, texts

__all__ = ["AGREES", "KINDS", "measure_sweep"]

_PICTURES = "texts about images"
KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    "encoder and decoder": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    "images": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    "speech": modeling_auto.MODEL_FOR_CTC_MAPPING,
    "speech to text": modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    "images and texts": modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING,
    _PICTURES: modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
}
# Models that generate texts from texts alone.
_OF_TEXTS = ("causal", "encoder and decoder", "masked", _PICTURES)
#: The largest difference of float32, as a part of an output's largest number.
AGREES = 2e-5

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
                row |= _outcome(make_config, make, kind, calls)
                if row["outcome"] in ("agrees", "differs") and not calls.count:
                    row["outcome"] = "no attention"
        except (Exception, TimeIsOverError) as error:  # the next class may run all the same
            row |= {"outcome": "fails", "reason": _words(error)}
        rows.append(row)
        print(f"{name:28} {row['outcome']:12} {row.get('difference', '')!s:10.8} "
              f"{row.get('reason', '')[:150]}", flush=True)  # fmt: skip
    return rows


def _outcome(make_config: Any, make: type[PreTrainedModel], kind: str, calls: _Calls) -> dict:
    if not make._can_set_attn_implementation():
        return {"outcome": "no interface"}
    try:
        model = small_model(make_config, make, lambda model: _form(kind, model))
    except (NotSmallError, ImportError) as error:
        return {"outcome": "not made", "reason": _words(error)}
    form, (images, why) = _form(kind, model), _of_images(kind, model)
    padding = _masks(model, *(_given(kind, model, form, side) for side in ("none", "between")))

    def outputs(padding: str = "none") -> list[Tensor]:
        return _outputs(model, _given(kind, model, form, padding), images)

    worst, implementations = 0.0, ["eager", "sdpa"] if make._supports_sdpa else ["eager"]
    for side in PADDING if padding else ("none",):
        found = {}
        for name in (*implementations, "relpos"):
            model.set_attn_implementation(name)
            found[name] = outputs(side)
        ours = found.pop("relpos")
        # They differ where eager's masks are finite, and where SDPA leaves something out.
        differences = [_difference(ours, theirs) for theirs in found.values()]
        worst = max(worst, min((x for x in differences if math.isfinite(x)), default=math.inf))
    row = {"outcome": "agrees" if worst <= AGREES else "differs", "difference": worst}
    row |= {"padding": padding} | ({"images": why or "compared"} if kind == _PICTURES else {})
    if kind in _OF_TEXTS and "input_ids" in _given(kind, model, form) and model.can_generate():
        row["texts"] = _texts(model)
        if row["texts"] == "differ":
            row["outcome"] = "differs"
    if row["outcome"] == "agrees":
        right = outputs()
        calls.altered = True
        if _difference(outputs(), right) <= AGREES:
            row["outcome"] = "no attention"
    return row


def _given(kind: str, model: PreTrainedModel, form: int, padding: str = "none") -> dict[str, Any]:
    return list(candidates(kind, model, padding))[form]


@torch.no_grad()
def _masks(model: PreTrainedModel, whole: dict[str, Any], padded: dict[str, Any]) -> bool:
    """Whether a mask of padding changes anything."""
    found, other = (_tensors(model(**given)) for given in (whole, padded))
    return "attention_mask" in whole and not _difference(found, other) <= AGREES


@torch.no_grad()
def _form(kind: str, model: PreTrainedModel) -> int:
    """The number of the first candidate on which a model runs."""
    first: Exception | None = None
    for number, given in enumerate(candidates(kind, model, "none")):
        try:
            model(**given)
        except Exception as error:  # models fail in their own ways on what they do not take
            first = first or error
        else:
            return number
    assert first is not None
    raise first


@torch.no_grad()
def _of_images(kind: str, model: PreTrainedModel) -> tuple[Callable[[], Any] | None, str]:
    """What makes of images what joins a text, in a form that the model takes; or why there is none.

    Args:
        kind: of the model; images join texts in one of them.
        model: with eager attention.
    """
    why = "no get_image_features"
    for call in image_features(model) if kind == _PICTURES else []:
        try:
            call()
        except Exception as error:  # as above
            why = _words(error)
        else:
            return call, ""
    return None, why


@torch.no_grad()
def _outputs(
    model: PreTrainedModel, given: dict[str, Any], images: Callable[[], Any] | None
) -> list[Tensor]:
    """The logits, at real tokens where they are of tokens, or all outputs; and those of images."""
    output = model(**given)
    of_images = [] if images is None else _tensors(images())
    logits, tokens = getattr(output, "logits", None), given.get("attention_mask")
    if logits is None:
        return _tensors(output) + of_images
    of_tokens = tokens is not None and logits.shape[:2] == tokens.shape and "input_ids" in given
    return [logits[tokens.bool()] if tokens is not None and of_tokens else logits, *of_images]


def _tensors(output: Any) -> list[Tensor]:
    """All of floating numbers within an output or a part of it."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() and output.numel() else []
    if isinstance(output, dict):
        output = tuple(output.values())
    parts = output if isinstance(output, tuple | list) else ()
    return [x for part in parts for x in _tensors(part)]


def _difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest of all tensors, as a part of the largest number of each; of NaN, NaN."""
    if len(ours) != len(theirs):
        return math.inf
    parts = [
        (x - y).abs().max() / y.abs().max().clamp(min=torch.finfo(y.dtype).tiny)
        for x, y in zip(ours, theirs, strict=True)
    ]
    return float(torch.stack(parts).max())


@torch.no_grad()
def _texts(model: PreTrainedModel) -> str:
    """Whether the same text is generated: "equal", "differ", or why the model generates none."""
    given, found = texts("left"), []
    model.generation_config.eos_token_id = None
    for name in ("eager", "relpos"):
        model.set_attn_implementation(name)
        try:
            found.append(typed(Any, model).generate(
                **given, max_new_tokens=12, do_sample=False, decoder_start_token_id=1
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


@dataclass
class _Calls:
    """Of relpos by a model: how many, and whether they give what they should not."""

    count: int = 0
    altered: bool = False


@contextmanager
def _counted() -> Iterator[_Calls]:
    """What counts the times that a model attends by relpos."""
    calls = _Calls()

    def attend(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        calls.count += 1
        output, weights = attn_implementation.attention_function(*args, **kwargs)
        return output.flip(-1) if calls.altered else output, weights

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
