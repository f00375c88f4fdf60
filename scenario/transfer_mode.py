"""How pages move between L1 and L2, and what a profile makes of "auto".

A profile that `hicache calibrate` made knows whole operations of the back-ends of a real run, and a
prediction with these is the best there is. Profiles put together from published numbers know the
link alone. Refuses to know what a copy takes: that is `sim.pcie`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from scenario.profile import PcieProfile

TransferMode = Literal["auto", "backend", "staged", "kernel", "dma"]


def chosen_mode(profile: PcieProfile, mode: TransferMode, transfers: str) -> TransferMode:
    """What a simulation uses. `transfers`: the back-end that `hw.transfers` names.

    "auto" is "backend" where the profile has measured that back-end, else "staged"; every other
    mode is itself, whether the profile has it or not.
    """
    if mode != "auto":
        return mode
    return "staged" if getattr(profile.backends, transfers, None) is None else "backend"
