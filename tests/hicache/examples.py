"""How many examples a hypothesis test tries: the same ones in every run, unless asked to explore.

`HICACHE_EXPLORE=20 pytest tests/hicache` tries twenty times as many, new ones each time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXPLORE = int(os.environ.get("HICACHE_EXPLORE", "0"))


def examples(number: int) -> settings:
    """Settings for `number` examples."""
    return settings(
        max_examples=number * max(EXPLORE, 1),
        deadline=None,
        derandomize=not EXPLORE,
        database=None,
        # Contracts are inherited: one test function, several classes that run it.
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
    )
