"""The methods by which queries of one rank meet the keys of others.

A call is checked and compared among ranks (`attend.py`), becomes a `CutCall`, and is computed by
what `choice.py` takes: tokens in exchange for heads (`heads.py`), or rows that stay on their rank
while keys come to them (`cut_attention.py`, by `ring.py`, `gather.py` or `whole.py`), or both
(`hybrid.py`).
"""
