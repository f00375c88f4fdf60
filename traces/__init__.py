"""Reads, checks and generates request traces. Knows nothing of caches, devices or time other than stamps."""
