"""Programs for maintainers: building wheels, and what is to be run on a machine with a GPU."""
