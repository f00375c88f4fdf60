"""The nearest known name to a mistyped one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing if none is near. A dotted key may match by its last part."""
    import difflib

    known = list(known)
    by_lower = {each.lower(): each for each in reversed(known)}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if not found:
        tails = {each.rsplit(".", 1)[-1].lower(): each for each in reversed(known)}
        near_tails = difflib.get_close_matches(
            name.rsplit(".", 1)[-1].lower(), tails, n=1, cutoff=0.7
        )
        found = [tails[near] for near in near_tails]
    return f" (did you mean {by_lower.get(found[0], found[0])}?)" if found else ""
