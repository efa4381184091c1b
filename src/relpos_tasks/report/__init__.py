"""The report page: sections of blocks, each with a template of its own."""
