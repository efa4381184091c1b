"""`python -m relpos_tasks`: as `relpos`, whatever the search path for commands is."""

from .cli import main

main()
