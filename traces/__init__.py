"""Reads, checks and generates request traces. Knows no cache, no device, no time but stamps."""
