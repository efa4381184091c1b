"""What people run: the `relpos` command, training, and one folder per task, on top of `relpos`."""
