"""What is measured: settings (sizes), schemes (tables), and what others run in their place."""
