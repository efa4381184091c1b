"""One file for each family of models: the methods that its modules are given."""
