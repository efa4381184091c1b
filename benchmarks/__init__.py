"""What relpos costs and how far it is from others, measured; README.md says how to run it."""
