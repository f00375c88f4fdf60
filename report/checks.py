"""Self-checks that every run makes of itself: cheap, always on.

What cannot be true of a sound run is a `SelfCheckError` with the check's name; what a user should
know before believing a number is a warning, one sentence each, that starts with the check's name.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hicache.errors import HiCacheError
from report.rows import Rows
from report.run import Finer

if TYPE_CHECKING:
    from report.run import FinishedRun

GIB = 1 << 30
# Requests a second that no single server gets.
IMPLAUSIBLE_RATE = 200


class SelfCheckError(HiCacheError):
    """A run contradicts itself: a bug here. Arguments: a message that starts with the check's
    name.
    """


def run_checks(run: FinishedRun, rows: Rows) -> list[str]:
    """All checks; the warnings of those that have something to say. Raises SelfCheckError."""
    tokens_by_source(run, rows)
    bytes_moved(run)
    return [
        *reuse_above_ceiling(run),
        *timestamps_unit(run, rows),
        *context_length(run, rows),
        *idle_tiers(run),
        *store_switches(run),
        *overload(run, rows),
        *outside_range(run),
    ]


def reuse_above_ceiling(run: FinishedRun) -> list[str]:
    """Hits of all requests cannot exceed the pages asked for more than once.

    In whatever order requests are served, an infinite cache computes every distinct page once, or
    finds it in an answer: so a page of an answer that a prompt before it had may be one hit more.
    Where a real run has a store that outlives it, what is above is owed to others.
    """
    metrics, facts = run.engine.metrics, run.trace.facts
    hit = sum(metrics.cached_pages)
    most = facts.ideal_pages + facts.known_answer_pages
    if hit <= most:
        return []
    if run.machine is None and run.options.has_store and run.scenario.hw.store != "slots":
        return [
            f"reuse_above_ceiling: {hit:,} pages were hit, though only {most:,} were asked for "
            "again: the store held others when the run began, or got them from elsewhere "
            f"(hw.store is {run.scenario.hw.store}); ceilings are those of a cache that is empty "
            "at first"
        ]
    raise SelfCheckError(
        f"reuse_above_ceiling: {hit} pages were hit, but only {most} were asked for again"
    )


def tokens_by_source(run: FinishedRun, rows: Rows) -> None:
    """device + host + storage + computed = prompt, for every request."""
    columns = [
        rows.column(name)
        for name in (
            "device_tokens", "host_tokens", "storage_tokens", "computed_tokens", "prompt_tokens",
            "request",
        )
    ]  # fmt: skip
    for device, host, storage, computed, prompt, number in zip(*columns, strict=True):
        if device + host + storage + computed != prompt or min(device, host, storage) < 0:
            raise SelfCheckError(
                f"tokens_by_source: request {number} has {device} + {host} + {storage} cached and "
                f"{computed} computed tokens of a prompt of {prompt}"
            )


def bytes_moved(run: FinishedRun) -> None:
    """Bytes are pages times bytes per page, and what was loaded is what was hit below L1."""
    metrics, page_bytes = run.engine.metrics, run.options.page_bytes
    for name, stats in metrics.directions.items():
        if stats.size_bytes != stats.pages * page_bytes:
            raise SelfCheckError(
                f"bytes_moved: {name} moved {stats.size_bytes} bytes in {stats.pages} pages "
                f"of {page_bytes}"
            )
    hit = metrics.cached_pages[1] + metrics.cached_pages[2]
    loaded = metrics.directions["h2d"].pages
    exact = not (metrics.retractions or metrics.aborted or run.interrupted)
    if hit > loaded or (exact and hit != loaded):
        raise SelfCheckError(f"bytes_moved: {hit} pages hit in L2 and L3, {loaded} loaded to L1")


def context_length(run: FinishedRun, rows: Rows) -> list[str]:
    """Requests longer than the model's context."""
    most = run.geometry.max_context_tokens
    if not most:
        return []
    longer = sum(
        prompt + made > most
        for prompt, made in zip(
            rows.column("prompt_tokens"), rows.column("output_tokens"), strict=True
        )
    )
    if not longer:
        return []
    return [
        f"context_length: {longer:,} of {len(rows):,} requests are longer than the {most:,} tokens "
        f"that {run.geometry.name} is made for; they are replayed as if it were made for more"
    ]


def idle_tiers(run: FinishedRun) -> list[str]:
    """A tier that was paid for and served nothing, or next to nothing, and the reason if it is
    known.
    """
    if not run.trace.layout.has_ids:
        return []  # nothing could be hit, in whatever tier
    metrics, options = run.engine.metrics, run.options
    _, host, storage = metrics.cached_tokens
    prompt = max(metrics.prompt_tokens, 1)
    refused = metrics.policy_skips
    why = f"; the policy preferred to compute again {refused:,} times" if refused else ""
    if not run.engine.tree.tiers[0].evicted_pages:
        why = "; L1 never had to evict anything"
    elif options.host_pages <= options.device_pages and not options.storage_pages:
        why += "; it is no larger than L1 (docs/two-tiers.md)"
    warnings: list[str] = []
    for name, pages, served, written in (
        ("L2", options.host_pages, host + storage, metrics.directions["d2h"].size_bytes),
        ("L3", options.storage_pages, storage, metrics.directions["h2s"].size_bytes),
    ):
        if pages and served < prompt / 100:
            size = f"{pages * options.page_bytes / GIB:,.1f} GiB"
            share = f"{100 * served / prompt:.2g} % of the prompt tokens" if served else "no hit"
            moved = f", though {written / GIB:,.1f} GiB were written to it" if written else ""
            warnings.append(f"idle_tier: {name} of {size} served {share}{moved}{why}")
    return warnings


def store_switches(run: FinishedRun) -> list[str]:
    """An attach or a detach that did not come about: no request came after its time while nobody
    else was there.
    """
    options, metrics = run.options, run.engine.metrics
    if not options.has_store or run.scenario.mode != "timed":
        return []
    storage, engines = options.storage, len(run.instances)
    warnings: list[str] = []
    for key, asked, done, stays in (
        ("storage.attach_s", storage.attach_s, metrics.attached, "without its L3"),
        ("storage.detach_s", storage.detach_s, metrics.detached, "with its L3"),
    ):
        if asked and done < engines:
            who = "the engine" if engines == 1 else f"{engines - done} of {engines} engines"
            warnings.append(
                f"store_switch: {key} is {asked:g}, but from then on no request came to {who} "
                f"while nothing else was going on: what came was served {stays}"
            )
    return warnings


def timestamps_unit(run: FinishedRun, rows: Rows) -> list[str]:
    """Arrivals so dense that the trace's times are probably not milliseconds."""
    facts = run.trace.facts
    span_s = facts.duration_s
    if facts.requests < 10 or span_s <= 0 or facts.requests / span_s < IMPLAUSIBLE_RATE:
        return []
    return [
        f"timestamps_unit: {facts.requests:,} requests within {span_s * 1000:.4g} ms "
        f"({facts.requests / span_s:,.0f} a second): timestamps are taken as milliseconds; if the "
        "trace's are seconds, give --speed 0.001"
    ]


def overload(run: FinishedRun, rows: Rows) -> list[str]:
    """The queue only grows: waits rise from quarter to quarter and work goes on after the trace."""
    metrics = run.engine.metrics
    if run.scenario.mode != "timed" or len(rows) < 40 or run.interrupted:
        return []
    if run.load.loop == "closed" or not run.trace.layout.timed:
        return []  # arrivals wait for answers, so the queue cannot outgrow the clients
    arrivals, queue = rows.column("arrival_ns"), rows.column("queue_ns")
    span = arrivals[-1] - arrivals[0]
    drain = metrics.last_token_ns - arrivals[-1]
    quarter = len(rows) // 4
    waits = [sum(queue[k * quarter : (k + 1) * quarter]) / quarter for k in range(4)]
    grows = all(early < late for early, late in pairwise(waits))
    if span <= 0 or not grows or drain < span * 0.02 or waits[3] < span * 0.01:
        return []
    share = span / (span + drain) * 0.9
    rate = run.scenario.load.rate
    advice = f"--rate {rate * share:.2g}" if rate else f"--speed {run.trace.speed * share:.2g}"
    return [
        f"overload: the queue only grows (mean wait {waits[0] / 1e9:.1f} s in the first quarter of "
        f"the requests, {waits[3] / 1e9:.1f} s in the last; {drain / 1e9:.0f} s of work left when "
        f"the trace ended): times say how long the trace is, not how fast the machine is. "
        f"Try {advice}"
    ]


def outside_range(run: FinishedRun) -> list[str]:
    """The machine was asked for more than its profile was measured for."""
    if run.machine is None:
        return []
    metrics = run.engine.metrics
    steps = (
        metrics.prefill_steps
        + metrics.decode_bursts
        + sum(stats.operations for stats in metrics.directions.values())
    )
    lines: list[str] = []
    for each in run.machine.outside_range():
        below = each.farthest < each.measured_to
        taken = "that of the nearest sample" if below else "extrapolated"
        if isinstance(each, Finer):
            taken = "in proportion to the pieces"
        lines.append(
            f"outside_range: in {each.times:,} of {steps:,} operations the {each.what} lay "
            f"{'below' if below else 'beyond'} what the profile measured "
            f"({each.measured_to:,}; farthest {each.farthest:,}): their time is {taken}"
        )
    return lines
