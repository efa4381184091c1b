"""What Shaw et al. 2018 report of their ablation, from memory: whoever prints it must say so.

WMT 2014 English-German, BLEU of newstest2013, another measure of other text than ours.
"""

from __future__ import annotations

__all__ = ["BLEU_BY_DISTANCE", "BLEU_BY_TABLES", "WHERE"]

WHERE = "Shaw et al. 2018, from memory"
# Table 2: the largest offset with a row of its own.
BLEU_BY_DISTANCE = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}
# Table 3: which of the two tables there are.
BLEU_BY_TABLES = {"keys and values": 25.8, "keys": 25.8, "values": 25.3, "neither": 12.5}
