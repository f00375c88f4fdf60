"""How pages move between L1 and L2, and what a profile makes of "auto".

A profile that `hicache calibrate` made knows whole operations of the back-ends of a real run, and a
prediction with these is the best there is. Profiles put together from published numbers know the
link alone. Refuses to know what a copy takes: that is `sim.pcie`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from scenario.profile import PcieProfile

TransferMode = Literal["auto", "backend", "staged", "kernel", "dma"]
ALIKE: Final[Mapping[TransferMode, str]] = {"kernel": "zero_copy", "dma": "direct"}
"""By mode, the back-end of `hw.transfers` that moves pages in this way. "staged" is none's way,
not even that of the one so called: in it a CPU gathers pages that lie apart in L2.
"""


def chosen_mode(profile: PcieProfile, mode: TransferMode, transfers: str) -> TransferMode:
    """What a simulation uses. `transfers`: the back-end that `hw.transfers` names.

    "auto" is "backend" where the profile has measured that back-end, else "staged"; every other
    mode is itself, whether the profile has it or not.
    """
    if mode != "auto":
        return mode
    return "staged" if getattr(profile.backends, transfers, None) is None else "backend"
