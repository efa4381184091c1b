"""How classes of timm are adapted, one file for each of its own files, most often."""
