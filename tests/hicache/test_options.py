"""A bad option is refused where it is made, by name."""

from __future__ import annotations

import pytest

from hicache.errors import InputError
from hicache.options import (
    CacheOptions,
    EngineOptions,
    OffloadOptions,
    RestoreOptions,
    SchedulerOptions,
    StorageOptions,
)


@pytest.mark.parametrize(
    ("make", "options", "named"),
    [
        (EngineOptions, {"page_size_tokens": 0}, "page_size_tokens is 0"),
        (EngineOptions, {"bytes_per_token": -1}, "bytes_per_token is -1"),
        (EngineOptions, {"device_pages": 0}, "device_pages is 0"),
        (EngineOptions, {"host_pages": -3}, "host_pages is -3"),
        (EngineOptions, {"storage_pages": -3}, "storage_pages is -3"),
        (EngineOptions, {"storage_pages": 5}, "storage_pages is 5 but host_pages is 0"),
        (EngineOptions, {"check_every_steps": -1}, "check_every_steps is -1"),
        (CacheOptions, {"gdsf_doubling_tokens": 0}, "cache.gdsf_doubling_tokens is 0"),
        (CacheOptions, {"writes_in_flight": 0}, "cache.writes_in_flight is 0"),
        (CacheOptions, {"merge_writes_tokens": -1}, "cache.merge_writes_tokens is -1"),
        (CacheOptions, {"write_backlog_fraction": 1.5}, "cache.write_backlog_fraction is 1.5"),
        (RestoreOptions, {"threshold_tokens": -1}, "restore.threshold_tokens is -1"),
        (RestoreOptions, {"probe_every": -1}, "restore.probe_every is -1"),
        (RestoreOptions, {"prior_recompute_us_per_token": 0}, "restore.prior_recompute_us"),
        (RestoreOptions, {"prior_host_gib_per_s": -2.0}, "restore.prior_host_gib_per_s is -2"),
        (RestoreOptions, {"prior_storage_gib_per_s": 0}, "restore.prior_storage_gib_per_s is 0"),
        (StorageOptions, {"attach_s": -1.0}, "storage.attach_s is -1"),
        (StorageOptions, {"detach_s": -1.0}, "storage.detach_s is -1"),
        (StorageOptions, {"attach_s": 2.0, "detach_s": 2.0}, "one must come first"),
        (OffloadOptions, {"stride_tokens": -1}, "offload.stride_tokens is -1"),
        (SchedulerOptions, {"max_running_requests": 0}, "scheduler.max_running_requests is 0"),
        (SchedulerOptions, {"chunk_tokens": 0}, "scheduler.chunk_tokens is 0"),
        (SchedulerOptions, {"output_reserve_fraction": -0.1}, "output_reserve_fraction is -0.1"),
    ],
)
def test_a_bad_option_is_named_with_its_value(make, options, named):
    needed = {"page_size_tokens": 1, "bytes_per_token": 1, "device_pages": 1}
    with pytest.raises(InputError, match=named):
        make(**{**(needed if make is EngineOptions else {}), **options})


def test_not_a_number_is_refused():
    with pytest.raises(InputError, match="write_backlog_fraction is nan"):
        CacheOptions(write_backlog_fraction=float("nan"))
    with pytest.raises(InputError, match="prior_host_gib_per_s is nan"):
        RestoreOptions(prior_host_gib_per_s=float("nan"))


def test_the_bytes_of_a_page():
    assert EngineOptions(16, 100, 1).page_bytes == 1600
