import os

# Modules are built from configurations with random weights; nothing is ever fetched.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
