"""What an engine believes a store to hold, and how a belief that is false ends."""

from __future__ import annotations

from hicache.store_belief import MOST_PAGES, StoreBelief


def test_what_is_claimed_or_was_written_need_not_be_written() -> None:
    belief = StoreBelief()
    belief.claim(((0, 4),))
    belief.seen(((4, 2),))
    assert belief.leading(((0, 8),)) == 6
    assert belief.missing(0, 8) == 2
    belief.settle(((0, 4),), 3)  # the fourth failed
    assert belief.leading(((0, 8),)) == 3
    assert belief.missing(0, 8) == 3
    assert belief.missing(3, 1) == 1


def test_what_the_store_says_it_lacks_is_written_again() -> None:
    belief = StoreBelief()
    belief.seen(((0, 8), (20, 4)))
    belief.absent(((5, 3), (20, 2)))
    assert belief.leading(((0, 8),)) == 5
    assert belief.leading(((20, 4),)) == 0
    assert belief.leading(((22, 2),)) == 2


def test_nothing_is_claimed_twice() -> None:
    belief = StoreBelief()
    belief.seen(((0, 3),))
    belief.claim(((6, 4),))
    assert (belief.leading(((0, 12),)), belief.lacking(((0, 12),))) == (3, 0)
    assert belief.lacking(((3, 9),)) == 3
    assert belief.lacking(((10, 2), (50, 4), (6, 1))) == 6
    assert belief.missing(0, 12) == 3 + 2


def test_a_claim_outlives_what_the_store_says() -> None:
    belief = StoreBelief()
    belief.claim(((0, 4),))
    belief.absent(((0, 4),))  # it has not arrived yet
    assert belief.leading(((0, 4),)) == 4


def test_it_forgets_what_was_not_used_for_long() -> None:
    belief = StoreBelief()
    belief.seen(((0, 10),))
    belief.seen(((1000, MOST_PAGES - 5),))
    assert belief.leading(((0, 10),)) == 0
    assert belief.leading(((5, 5),)) == 5
