"""`python -m relpos`."""

from relpos_tasks.cli import main

main()
