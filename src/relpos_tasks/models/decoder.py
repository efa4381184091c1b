"""A decoder language model whose position scheme is one word of its configuration.

A pre-norm transformer (Radford et al. 2019) with GELU. The scheme is the only thing that changes
between two models: with the same seed, every other parameter starts with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from jaxtyping import Float, Int64
from torch import Tensor, nn

from relpos.checks import check_count, check_shape
from relpos.layers import DecoderBlock, KeyValueCache, MultiheadAttention
from relpos.layers.cache import rollback_on_error
from relpos.positions import Huang, LearnedAbsolute, Shaw, Sinusoidal

from .configured import ConfiguredModel

__all__ = ["POSITIONS", "DecoderConfig", "DecoderLM"]


@dataclass(frozen=True)
class DecoderConfig:
    """Everything that decides a `DecoderLM`'s shape.

    Args:
        vocabulary: number of tokens.
        width: of the residual stream.
        layers: number of blocks.
        heads: attention heads of a block; they divide the width.
        hidden: width of a block's MLP; None means `4 * width`.
        dropout: probability in `0 <= dropout < 1`, of embeddings, weights and residual branches.
        position: `"huang"` or `"shaw"` (keys and values) in every block's attention, `"absolute"`
            or `"sinusoidal"` at the input, or `"none"`. The model is causal, so that a
            bidirectional table would be a Huang table with rows that no offset selects.
        max_length: rows of the Huang and absolute tables, in tokens; longer inputs clamp.
        max_distance: how far back Shaw's rows reach, in tokens.
        shared_heads: whether the heads of a block share one table of relative positions.
        attention_window: how far back a token sees in each block, in tokens, itself not counted;
            None: to the beginning. While tokens are drawn, a cache holds no more than these.

    Raises:
        ValueError: if a value is out of range or `position` is unknown.

    >>> DecoderConfig(vocabulary=100, width=64).head_dim
    16
    """

    vocabulary: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    hidden: int | None = None
    dropout: float = 0.1
    position: str = "huang"
    max_length: int = 512
    max_distance: int = 64
    shared_heads: bool = True
    attention_window: int | None = None

    def __post_init__(self) -> None:
        sizes = ("vocabulary", "width", "layers", "heads", "hidden", "max_length", "max_distance")
        for name in (*sizes, "attention_window"):
            value = getattr(self, name)
            if name in ("hidden", "attention_window") and value is None:
                continue
            object.__setattr__(self, name, check_count("DecoderConfig", name, value))
        if self.width % self.heads:
            raise ValueError(
                f"DecoderConfig: width must be a multiple of heads={self.heads}, got {self.width}"
            )
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(
                f"DecoderConfig: dropout must be in 0 <= dropout < 1, got {self.dropout!r}"
            )
        if not isinstance(self.shared_heads, bool):
            raise ValueError(
                f"DecoderConfig: shared_heads must be True or False, got {self.shared_heads!r}"
            )
        if not isinstance(self.position, str) or self.position not in POSITIONS:
            raise ValueError(
                f"DecoderConfig: position must be one of {', '.join(map(repr, POSITIONS))}, "
                f"got {self.position!r}"
            )

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON.

        >>> DecoderConfig.from_dict(DecoderConfig(5).to_dict()) == DecoderConfig(5)
        True
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DecoderConfig:
        """The configuration with these fields; what is left out keeps its default.

        Args:
            values: as `to_dict` gives them.

        Raises:
            ValueError: if a field is unknown, `vocabulary` is missing, or a value out of range.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ValueError(
                f"DecoderConfig: fields must be among {', '.join(known)}, got {', '.join(unknown)}"
            )
        if "vocabulary" not in values:
            raise ValueError("DecoderConfig: fields must contain vocabulary, got none")
        return cls(**values)


def _shaw(config: DecoderConfig) -> nn.Module:
    # In a causal model no offset selects a row for keys to the right.
    distances = (config.max_distance, 0)
    return Shaw(config.head_dim, distances, 1 if config.shared_heads else config.heads)


def _huang(config: DecoderConfig) -> nn.Module:
    return Huang(config.head_dim, config.max_length, 1 if config.shared_heads else config.heads)


def _sinusoidal(config: DecoderConfig) -> nn.Module:
    # The embeddings have variance 1 / width, so the waves are brought down to the same size.
    return Sinusoidal(config.width, scale=config.width**-0.5)


def _absolute(config: DecoderConfig) -> nn.Module:
    return LearnedAbsolute(config.width, config.max_length)


# Each name's module at the input, and its module in each block.
POSITIONS: dict[
    str,
    tuple[Callable[[DecoderConfig], nn.Module] | None, Callable[[DecoderConfig], nn.Module] | None],
] = {
    "huang": (None, _huang),
    "shaw": (None, _shaw),
    "absolute": (_absolute, None),
    "sinusoidal": (_sinusoidal, None),
    "none": (None, None),
}


class DecoderLM(ConfiguredModel):
    """Logits of the next token, from the tokens up to each position.

    The output head has a matrix of its own: small vocabularies make it cheap, and a tied one would
    start by predicting the token that it has just read.

    Args:
        config: the model's shape.

    >>> import torch
    >>> model = DecoderLM(DecoderConfig(vocabulary=7, width=8, layers=1, heads=2))
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 7])
    """

    config_class: ClassVar = DecoderConfig
    config: DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.dropout = nn.Dropout(config.dropout)
        window = None if config.attention_window is None else (config.attention_window, 0)
        attentions = [
            MultiheadAttention(config.width, config.heads, config.dropout, window=window)
            for _ in range(config.layers)
        ]
        self.blocks = nn.ModuleList(
            DecoderBlock(attention, hidden=config.hidden, dropout=config.dropout)
            for attention in attentions
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.reset_parameters()
        # Positions draw their numbers last, so that two schemes agree in everything else.
        at_input, in_block = POSITIONS[config.position]
        self.position = None if at_input is None else at_input(config)
        for attention in attentions:
            attention.position = None if in_block is None else in_block(config)

    def reset_parameters(self) -> None:
        """Draw everything but the positions: normal, with GPT-2's smaller residual projections.

        GPT-2's standard deviation 0.02 at width 768 is about `0.5 / sqrt(width)`, which is used
        here; the projections that end in the residual stream are divided by `sqrt(2 * layers)`
        (Radford et al. 2019, section 2.3). Embeddings have variance `1 / width`, as have the rows
        of absolute positions.
        """
        std = 0.5 * self.config.width**-0.5
        residual = std * (2 * self.config.layers) ** -0.5
        nn.init.normal_(self.embedding.weight, std=2 * std)
        for name, parameter in self.blocks.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name and "position" not in name:
                ends = name.endswith(("out_proj.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=residual if ends else std)
        nn.init.normal_(self.head.weight, std=std)

    def forward(
        self, tokens: Int64[Tensor, "b i"], cache: Sequence[KeyValueCache] | None = None
    ) -> Float[Tensor, "b i vocabulary"]:
        """Logits of the token after each one.

        Args:
            tokens: numbers in `0..vocabulary - 1`.
            cache: from `new_cache`, holding the tokens before these, to which these are added.

        Raises:
            ShapeError: if `tokens` is not `(b, i)`.
            ValueError: if `cache` has another number of layers.
        """
        check_shape("DecoderLM", "tokens", tokens, "b i", {})
        if cache is not None and len(cache) != len(self.blocks):
            raise ValueError(
                f"DecoderLM: cache must have {len(self.blocks)} layers, got {len(cache)}"
            )
        x = self.embedding(tokens)
        if self.position is not None:
            x = self.position(x, start=0 if cache is None else cache[0].length)
        x = self.dropout(x)
        with rollback_on_error(*cache or ()):
            for n, block in enumerate(self.blocks):
                x = block(x, None if cache is None else cache[n])
        return self.head(self.norm(x))

    def new_cache(self) -> list[KeyValueCache]:
        """An empty cache for each layer.

        >>> len(DecoderLM(DecoderConfig(vocabulary=7, width=8, layers=3, heads=2)).new_cache())
        3
        """
        return [KeyValueCache() for _ in self.blocks]
