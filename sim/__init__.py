"""The simulated machine behind the engine's port, and replay on it. Knows nothing of real
devices.
"""

import hicache  # noqa: F401  # first: it decides in which form the modules here are imported
