"""Reads, checks and generates request traces. Knows no cache, no device, no time but stamps."""

import hicache  # noqa: F401  # first: it decides in which form the modules here are imported
