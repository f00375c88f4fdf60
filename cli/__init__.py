"""The `hicache` command. Thin: parses, calls, prints."""
