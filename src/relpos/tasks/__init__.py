"""What people train with relpos, one folder per task."""
