"""L3 attached and detached at run time: between a detach and an attach the engine has none.

    attached --- detach_s, and idle ---> detached --- attach_s, and idle ---> attached

SGLang refuses to do either unless the server is idle, and whoever asked tries again. Here it is
done at the first moment from its time on at which the engine is: no request lives in it, and
nothing is on its way to or from L3. Only a request can end such a moment, so that looking when one
arrives finds them all, and no timer has to keep a run going.

While it is detached, nobody asks L3, and what is written to L2 is not written on, nor made good for
later. What L3 holds stays. Refuses to know what L3 is: an L3 that is the tree's own is part of it,
and cannot leave.
"""

# pyright: reportPrivateUsage=false
# `Environment.now` is a property in Python; see hicache.kernel.
from __future__ import annotations

from typing import Any, final

from simpy import Environment

from hicache.admission import Admission
from hicache.endings import Endings
from hicache.metrics import Metrics
from hicache.options import EngineOptions
from hicache.prefetch import Prefetcher
from hicache.store_index import StoreWriter
from hicache.transfers import Transfers


@final
class Attachment:
    """The store of one engine, as `prefetcher` reads and `writer` writes it, and when it is there;
    `options.storage.switches` says that.
    """

    def __init__(
        self,
        env: Environment,
        prefetcher: Prefetcher,
        writer: StoreWriter,
        transfers: Transfers,
        admission: Admission,
        endings: Endings,
        options: EngineOptions,
        metrics: Metrics,
    ) -> None:
        self._env: Any = env  # its times are ints
        self._prefetcher = prefetcher
        self._writer = writer
        self._transfers = transfers
        self._admission = admission
        self._endings = endings
        self._metrics = metrics
        # When it may happen, and whether L3 is there from then on; the next one first.
        self._switches = list(options.storage.switches)
        if self._switches and self._switches[0][1]:
            self._join(attached=False)  # the first one is to attach it

    def look(self) -> None:
        """A request is about to come: do what was due while nobody was here."""
        while self._switches and self._switches[0][0] <= self._env._now and self._is_idle():
            _, attached = self._switches.pop(0)
            self._join(attached=attached)
            if attached:
                self._metrics.attached += 1
            else:
                self._metrics.detached += 1

    def _is_idle(self) -> bool:
        prefetcher, transfers = self._prefetcher, self._transfers
        return not (
            self._endings.live
            or transfers.writes_pending
            or self._writer.pending
            or (transfers.staging is not None and transfers.staging.waiting)
            or prefetcher.under_way
            or prefetcher.lent()[0]
        )

    def _join(self, *, attached: bool) -> None:
        """Let the engine have its L3, or not."""
        prefetcher = self._prefetcher if attached else None
        self._admission.prefetcher = self._endings.prefetcher = prefetcher
        staging = self._transfers.staging
        if staging is not None:
            staging.attached = attached
            return
        self._transfers.on_backed_up = self._writer.write if attached else None
        self._transfers.on_counted = self._writer.write_crossed if attached else None
