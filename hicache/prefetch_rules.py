"""One prefetch, and the numbers that decide over it: what is worth a question, how much may be
asked for at once, how long a request waits. `hicache.prefetch` acts on them; nothing is done here.
"""

from __future__ import annotations

from typing import Final, final

from hicache.node import Node
from hicache.operations import PageRuns
from hicache.options import EngineOptions, PrefetchOptions
from hicache.running import Running

ASKED: Final = 0  # waits for its Lookup, or for the answer
READING: Final = 1  # has its pages; waits for a worker, or is being read
READ: Final = 2  # nothing more will come; not published yet
PLACED: Final = 3  # published as soon as a page in front of it, which is on its way, has come
OVER: Final = 4  # a copy that was under way when it was stopped may still be

KI: Final = 1024


@final
class Prefetch:
    """One prefetch: `asked` pages with `keys`, behind `first` pages that L2 holds up to `anchor`.

    Of the `hit` pages that the store has, `taken` are read, into `pages`: each rank its part, and
    `came` says how many have come to which. The first `completed` are there on all ranks; `reading`
    ranks read on, and `under_way` copies have not ended. `reason`: why the rest will not come.
    """

    __slots__ = (
        "anchor", "asked", "began_ns", "came", "completed", "first", "hit", "keys", "number",
        "pages", "phase", "reading", "reason", "run", "taken", "under_way",
    )  # fmt: skip

    def __init__(
        self, number: int, run: Running, now_ns: int, anchor: Node, first: int, keys: PageRuns
    ) -> None:
        self.number = number
        self.run = run
        self.began_ns = now_ns
        self.anchor = anchor
        self.first = first
        self.keys = keys
        self.asked = sum(count for _, count in keys)
        self.hit = 0
        self.pages: PageRuns = ()
        self.taken = 0
        self.came: list[int] = []
        self.completed = 0
        self.reading = 0
        self.under_way = 0
        self.phase = ASKED
        self.reason = ""


def allowed_ns(options: PrefetchOptions, hit_tokens: int) -> int:
    """How long a prefetch of `hit_tokens` may take under the stop policy "timeout":
    min(max, base + per_ki_token * tokens / 1024), with a max of 0 for none.
    """
    seconds = options.timeout_base_s + options.timeout_per_ki_token_s * hit_tokens / KI
    if options.timeout_max_s and seconds > options.timeout_max_s:
        seconds = options.timeout_max_s
    return round(seconds * 1e9)


def threshold_pages(options: EngineOptions) -> int:
    """What is worth a question, or a read: at least a page."""
    return -(-options.prefetch.threshold_tokens // options.page_size_tokens) or 1


def limit_tokens(options: EngineOptions) -> int:
    """Tokens that may be asked for at once; who comes when there are as many is declined."""
    prefetch, page = options.prefetch, options.page_size_tokens
    pages = options.host_pages
    if prefetch.limit == "host_less_device":
        pages -= options.device_pages
    return max(0, int(prefetch.limit_fraction * pages * page + 1e-9))
