"""How classes of torchvision are adapted, one file for each of its own files."""
