"""Copies between L1 and L2: the same pages, three ways of moving them, and one that chooses."""
