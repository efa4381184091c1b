"""Training on Lightning: tasks, settings, devices, checkpoints, resuming."""
