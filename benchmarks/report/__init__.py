"""What is said of results: targets, the README's tables and the pages of docs/."""
