"""Beam search over an encoder-decoder by cached steps, for a batch of sources at once.

A hypothesis Y for the source X ends with the end token, which is one of its |Y| tokens:

    s(Y) = log P(Y | X) / lp(Y),    lp(Y) = ((5 + |Y|) / (5 + 1))^alpha      Wu et al. 2016, eq. 14

without their coverage penalty.

- Each step keeps the `beam` best continuations of a sentence by log P. One that ends is finished
  and keeps its place (the shrinking beam of Bahdanau et al. 2015): `beam=1` is greedy, and no more
  than `beam` hypotheses end.
- A hypothesis that reaches the maximum length can only end there, at the cost of log P(end).
- Stopping early is exact. log P falls with every token and lp rises with alpha >= 0, so that no
  continuation of Y scores above log P(Y) / lp(maximum length): a sentence leaves the batch once as
  many finished hypotheses as are wanted score at least that for its best unfinished one.
- Deterministic: of equally good continuations that of the better hypothesis is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from relpos.checks import check_count, check_number, check_shape

from .encoder_decoder import EncoderDecoder
from .evaluation_mode import evaluating

__all__ = ["BeamSearch", "Hypothesis", "beam_search", "source_and_50"]

# Far above what is used (0.6 in Vaswani et al. 2017), and far below what takes the penalty of long
# hypotheses out of the range of floats.
_MOST_ALPHA = 10


def source_and_50(length: int) -> int:
    """The most target tokens for so many of the source: 50 more (Vaswani et al. 2017, section 6.1).

    Args:
        length: tokens of the source, padding not counted.
    """
    return length + 50


@dataclass(frozen=True)
class BeamSearch:
    """How to search.

    Args:
        end: the token that ends a target; None: none does, and all have the maximum length.
        beam: hypotheses that are kept of each sentence.
        alpha: of the length penalty, in 0..10; 0 compares log P, whatever the length.
        n_best: hypotheses wanted of each sentence, at most `beam`.
        max_length: the most target tokens, the end included, for so many tokens of the source.

    Raises:
        ValueError: if a number is out of range.

    >>> round(BeamSearch(end=2, alpha=0.6).length_penalty(7), 3)
    1.516
    """

    end: int | None
    beam: int = 4
    alpha: float = 0.6
    n_best: int = 1
    max_length: Callable[[int], int] = source_and_50

    def __post_init__(self) -> None:
        for name in ("beam", "n_best"):
            check_count("BeamSearch", name, getattr(self, name))
        if self.end is not None:
            check_count("BeamSearch", "end", self.end, least=0)
        if self.n_best > self.beam:
            raise ValueError(
                f"BeamSearch: n_best must be at most beam={self.beam}, got {self.n_best}"
            )
        if not 0 <= check_number("BeamSearch", "alpha", self.alpha) <= _MOST_ALPHA:
            raise ValueError(
                f"BeamSearch: alpha must be a number in 0..{_MOST_ALPHA}, got {self.alpha}"
            )

    def length_penalty(self, length: int) -> float:
        """`lp(Y)` of a hypothesis of so many tokens, its end included."""
        return ((5 + length) / 6) ** self.alpha


@dataclass(frozen=True)
class Hypothesis:
    """One target that was found.

    Args:
        tokens: behind the prompt, without the end token.
        log_probability: log P(Y | X) in nats, that of the end token included.
        score: log P(Y | X) / lp(Y).
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float


def beam_search(
    model: EncoderDecoder,
    source: Int64[Tensor, "b j"],
    prompt: Int64[Tensor, "b p"],
    how: BeamSearch,
    *,
    source_padding: Bool[Tensor, "b j"] | None = None,
) -> list[list[Hypothesis]]:
    """The best targets of each source, best first; there is always one.

    The model runs in evaluation mode and is left as it was found. A batch takes as long as its
    longest target: `beam_search_all` puts sources of like length together.

    Args:
        model: gives the logits.
        source: tokens of the sources.
        prompt: how each target begins: the begin token at least; it is not part of the result.
        how: the settings of the search.
        source_padding: True behind the end of a source.

    Returns:
        For each source its `n_best` hypotheses, fewer where there are no more.

    Raises:
        ShapeError: if a tensor does not fit the others.
        ValueError: if the end is no token of the target, a maximum length is below 1, or the
            logits are not finite.
    """
    limits = _limits(model, source, prompt, how, source_padding)
    search = _Search(how, limits)
    with evaluating(model), torch.no_grad():
        memory, cache = model.encode(source, source_padding), model.new_cache()
        chunk = prompt
        while len(search.sentence):
            padding = None if source_padding is None else source_padding[search.sentence]
            logits = model.decode(chunk, memory, padding, cache=cache)[:, -1]
            # From now on the cache holds it.
            memory = None
            before = search.sentence
            parents = search.advance(logits)
            moved = not torch.equal(search.sentence, before)
            if moved or not torch.equal(parents, torch.arange(len(parents), device=source.device)):
                cache.reorder(parents, memory=moved)
            chunk = search.tokens[:, -1:]
    return search.results()


def _limits(
    model: EncoderDecoder,
    source: Tensor,
    prompt: Tensor,
    how: BeamSearch,
    source_padding: Tensor | None,
) -> Int64[Tensor, "b"]:
    """The most target tokens of each sentence, once all arguments fit each other."""
    check_shape("beam_search", "source", source, "b j")
    check_shape("beam_search", "prompt", prompt, "b p", {"b": source.shape[0]})
    for name, tokens in (("source", source), ("prompt", prompt)):
        check_count("beam_search", f"{name}.shape[1]", tokens.shape[1])
    vocabulary = model.config.target_vocabulary
    if how.end is not None and how.end >= vocabulary:
        raise ValueError(
            f"beam_search: end must be below target_vocabulary={vocabulary}, got {how.end}"
        )
    if source_padding is None:
        source_padding = torch.zeros_like(source, dtype=torch.bool)
    check_shape(
        "beam_search", "source_padding", source_padding, "b j",
        dict(zip("bj", source.shape, strict=True)),
    )  # fmt: skip
    lengths = (~source_padding).sum(1).tolist()
    limits = [check_count("beam_search", "max_length", how.max_length(n)) for n in lengths]
    return torch.tensor(limits, device=source.device, dtype=torch.int64)


class _Search:
    """The hypotheses of b sentences; those that are not finished are rows, a sentence's together.

    Args:
        how: the settings of the search.
        limits: the most target tokens of each sentence.
    """

    def __init__(self, how: BeamSearch, limits: Int64[Tensor, "b"]) -> None:
        self.how, self.limits = how, limits
        b, device = len(limits), limits.device
        # Of each row: its sentence, the tokens behind the prompt, and log P.
        self.sentence = torch.arange(b, device=device)
        self.tokens = limits.new_empty(b, 0)
        self.total = torch.zeros(b, device=device)
        # Of each sentence: what is finished, how many more may be, and what is to be beaten.
        self.finished: list[list[Hypothesis]] = [[] for _ in range(b)]
        self.places = torch.full((b,), how.beam, device=device)
        self.floor = torch.full((b,), -torch.inf, device=device)

    def advance(self, logits: Float[Tensor, "rows vocabulary"]) -> Int64[Tensor, "new_rows"]:
        """Go on by one token; returns the row that each new row continues."""
        step = self.tokens.shape[1] + 1
        sentence, parent, token, total = self._best(*self._continuations(logits, step))
        end = self.how.end
        ends = self.limits[sentence] == step if end is None else token == end
        tokens = torch.cat((self.tokens[parent], token[:, None]), 1)
        self._finish(sentence[ends], tokens[ends], total[ends])
        going = ~ends & ~self._decided(sentence, total.masked_fill(ends, -torch.inf))[sentence]
        self.sentence, self.tokens, self.total = sentence[going], tokens[going], total[going]
        return parent[going]

    def results(self) -> list[list[Hypothesis]]:
        """The best that is finished of each sentence."""
        return [found[: self.how.n_best] for found in self.finished]

    def _continuations(
        self, logits: Float[Tensor, "rows vocabulary"], step: int
    ) -> tuple[Float[Tensor, "rows k"], Int64[Tensor, "rows k"]]:
        """Each row's best continuations, best first: log P and the token."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_p = logits.log_softmax(-1, dtype=dtype)
        last = self.limits[self.sentence] == step
        if self.how.end is not None and last.any():
            others = torch.arange(log_p.shape[1], device=log_p.device) != self.how.end
            log_p = log_p.masked_fill(last[:, None] & others, -torch.inf)
        best, token = log_p.topk(min(self.how.beam, log_p.shape[1]))
        if not best[:, 0].isfinite().all():
            raise ValueError(f"beam_search: logits must be finite, got others at step {step}")
        return self.total[:, None] + best, token

    def _best(
        self, totals: Float[Tensor, "rows k"], tokens: Int64[Tensor, "rows k"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sentence, parent row, token and log P of the continuations that are kept, row by row."""
        b, beam, k = len(self.limits), self.how.beam, totals.shape[1]
        rows = self.sentence.bincount(minlength=b)
        first = rows.cumsum(0) - rows
        rank = torch.arange(len(totals), device=rows.device) - first[self.sentence]
        grid = totals.new_full((b, beam, k), -torch.inf)
        grid[self.sentence, rank] = totals
        ordered, order = grid.flatten(1).sort(dim=1, descending=True, stable=True)
        ordered = ordered[:, :beam]
        free = torch.arange(beam, device=rows.device) < self.places[:, None]
        sentence, place = (free & (ordered > -torch.inf)).nonzero(as_tuple=True)
        chosen = order[sentence, place]
        parent = first[sentence] + chosen // k
        return sentence, parent, tokens[parent, chosen % k], ordered[sentence, place]

    def _finish(
        self,
        sentence: Int64[Tensor, "n"],
        tokens: Int64[Tensor, "n length"],
        total: Float[Tensor, "n"],
    ) -> None:
        length = tokens.shape[1]
        text = tokens if self.how.end is None else tokens[:, :-1]
        for s, found, log_p in zip(sentence.tolist(), text.tolist(), total.tolist(), strict=True):
            score = log_p / self.how.length_penalty(length)
            self.finished[s].append(Hypothesis(tuple(found), log_p, score))
            # Stable: of two that score alike the one found earlier comes first.
            self.finished[s].sort(key=lambda one: -one.score)
            self.places[s] -= 1
            if len(self.finished[s]) >= self.how.n_best:
                self.floor[s] = self.finished[s][self.how.n_best - 1].score

    def _decided(
        self, sentence: Int64[Tensor, "n"], total: Float[Tensor, "n"]
    ) -> Bool[Tensor, "b"]:
        """Where no continuation of a row could score better than what is finished."""
        best = total.new_full((len(self.limits),), -torch.inf)
        best = best.scatter_reduce(0, sentence, total, "amax")
        return best / ((5 + self.limits) / 6) ** self.how.alpha <= self.floor
