"""A profile with everything that one may hold, so that tests meet every field."""

from __future__ import annotations

from msgspec.structs import replace

from scenario.profile import BackendCopies, Backends, Curve, Interference, Profile, Quantity

PAGE_BYTES = 9_437_184


def curve(*points: tuple[int, int]) -> Curve:
    return Curve(provenance="measured", how="made up", points=points)


def quantity(value: int) -> Quantity:
    return Quantity(provenance="measured", how="made up", value=value)


def copies(per_page_ns: int) -> BackendCopies:
    """A back-end whose scattered pages cost so much more."""
    counts = (1, 4, 16, 64)

    def way(each_ns: int, more_ns: int) -> Curve:
        return curve(
            *((count * PAGE_BYTES, 20_000 + count * each_ns + (count - 1) * more_ns)
              for count in counts)
        )  # fmt: skip

    return BackendCopies(
        h2d=way(180_000, 0),
        d2h=way(190_000, 0),
        h2d_scattered=way(180_000, per_page_ns),
        d2h_scattered=way(190_000, per_page_ns),
        page_bytes=PAGE_BYTES,
        duplex_bytes_per_s=quantity(30_000_000_000),
    )


def with_everything(profile: Profile) -> Profile:
    """`profile` with all that is optional."""
    return replace(
        profile,
        name="everything",
        gpu=replace(
            profile.gpu,
            dense_decode=curve((1, 7_000_000), (8, 7_100_000), (9, 7_500_000), (64, 7_900_000)),
            steps_ahead=quantity(1),
        ),
        pcie=replace(
            profile.pcie,
            backends=Backends(
                auto=copies(5000),
                staged=copies(9000),
                zero_copy=copies(7000),
                direct=copies(6000),
                at_once=quantity(2),
            ),
        ),
        host=replace(profile.host, engine=replace(profile.host.engine, burst_ns=quantity(300_000))),
        disk=replace(
            profile.disk,
            each_way=quantity(1),
            read_share_permille=quantity(600),
            first_write_permille=quantity(800),
        ),
        interference=Interference(
            h2d_under_prefill_permille=quantity(900),
            h2d_under_decode_permille=quantity(910),
            d2h_under_prefill_permille=quantity(920),
            d2h_under_decode_permille=quantity(930),
            prefill_under_h2d_permille=quantity(940),
            prefill_under_d2h_permille=quantity(950),
            decode_under_h2d_permille=quantity(960),
            decode_under_d2h_permille=quantity(970),
        ),
    )
