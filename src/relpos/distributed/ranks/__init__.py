"""The ranks of a group: who they are, what they agree on, and what they send each other."""
