"""The table `[load]` of a scenario: what makes requests arrive, and which limits go together.

What it means for the arrivals of a trace is `traces.load`'s; for the engine, `hicache.arrivals`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from hicache.errors import InputError
from hicache.options import LoadOptions

MOST_PER_S = 1_000_000
LEAST_PER_S = 1e-6


class LoadTable(msgspec.Struct, frozen=True):
    """What makes requests arrive, if not the trace's times alone."""

    # "trace": the trace's times. "at_once": all at 0. "poisson", "uniform": at `rate`, drawn from
    # the seed. "auto": "poisson" with a rate, "at_once" with clients, else "trace".
    arrivals: Literal["auto", "trace", "at_once", "poisson", "uniform"] = "auto"
    # Requests a second (sessions a second in a closed loop), for "poisson" and "uniform".
    rate: float = 0.0
    # "closed": a later turn of a session comes after the answer before it and its think time.
    # "open": at its time. "auto": closed with a limit below, or where the trace says that it is.
    loop: Literal["auto", "open", "closed"] = "auto"
    # Of a closed loop; 0 is no limit: sessions at once, and requests at once.
    clients: int = 0
    parallel: int = 0
    # Of a closed loop: no session's next turn before every session has had this one.
    barrier: bool = False

    def __post_init__(self) -> None:
        if self.rate and not LEAST_PER_S <= self.rate <= MOST_PER_S:
            raise InputError(
                f"load.rate is {self.rate}: it must lie between {LEAST_PER_S:f} and "
                f"{MOST_PER_S:,} a second, or be 0 (the trace's own times)"
            )
        for key, value in (("clients", self.clients), ("parallel", self.parallel)):
            if value < 0:
                raise InputError(f"load.{key} is {value}: it must not be negative")
            if value and self.loop == "open":
                raise InputError(
                    f'load.{key} is {value}: it limits a closed loop; set load.loop to "closed" '
                    "(--closed-loop)"
                )
        if self.barrier and self.loop == "open":
            raise InputError(
                'load.barrier is true: it holds a closed loop up; set load.loop to "closed" '
                "(--closed-loop)"
            )
        if self.rate and self.arrivals in ("trace", "at_once"):
            raise InputError(
                f'load.rate is {self.rate:g}: arrivals at a rate are "poisson" or "uniform", and '
                f'load.arrivals is "{self.arrivals}"'
            )
        if not self.rate and self.arrivals in ("poisson", "uniform"):
            raise InputError(
                f'load.arrivals is "{self.arrivals}": it needs a load.rate (--rate), in requests a '
                "second"
            )

    def limits(self, hints: Mapping[str, object]) -> LoadOptions:
        """What the engine is told, with "auto" decided by what the trace hints at.

        A trace that says that it is a closed loop also says how many requests are under way at
        once, and whether it goes in rounds; limits that are given here take their place.
        """
        if self.clients or self.parallel or self.barrier:
            return LoadOptions("closed", self.clients, self.parallel, self.barrier)
        if self.loop == "closed" or (self.loop == "auto" and hints.get("loop") == "closed"):
            parallel = hints.get("parallel")
            return LoadOptions(
                "closed",
                parallel=parallel if isinstance(parallel, int) and parallel > 0 else 0,
                barrier=hints.get("barrier") == "rounds",
            )
        return LoadOptions()

    @property
    def shape(self) -> Literal["trace", "at_once", "poisson", "uniform"]:
        """`arrivals` with "auto" decided."""
        if self.arrivals != "auto":
            return self.arrivals
        if self.rate:
            return "poisson"
        return "at_once" if self.clients else "trace"
