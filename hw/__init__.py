"""The real devices behind the engine's port. Torch and Triton are imported where they are needed.

Whether Triton compiles kernels or interprets them is settled when Triton is imported, which torch
and transformers may do; so it is settled here, and a program imports `hw` before them.
"""

import os

import hicache  # noqa: F401  # first: it decides in which form the modules here are imported

_SIGNS_OF_A_GPU = ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg")
if not any(os.path.exists(each) for each in _SIGNS_OF_A_GPU):
    os.environ.setdefault("TRITON_INTERPRET", "1")
