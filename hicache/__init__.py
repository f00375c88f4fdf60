"""The engine of a hierarchical KV cache, one copy for simulation and real hardware.

Radix tree, page allocators, policies, cost model, write-through and restore procedures, scheduler
and metrics. It talks to the outside through one port (`hicache.ports.Lanes`) and imports the
standard library, numpy and simpy only: no clock, no random module state, no thread, no device
library.
"""

from hicache import compiled as _compiled

__version__ = "0.1.0"

_compiled.prefer()
