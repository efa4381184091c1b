"""`python -m relpos`."""

from .cli import main

main()
