"""The simulated machine behind the engine's port, and replay on it. Knows nothing of real
devices.
"""
