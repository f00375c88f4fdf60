"""Machines with another link or disk than the measured one, for tests of what depends on it."""

from __future__ import annotations

from msgspec.structs import replace

from scenario.profile import BackendCopies, Curve, Profile, Quantity, Surface, load_profile


def slower(link: float = 1, disk: float = 1) -> Profile:
    """nvidia-h200, whose copies between L1 and L2 take `link` times as long, and whose disk does a
    `disk`-th of its work a second.
    """
    profile = load_profile("nvidia-h200")

    def longer(curve: Curve) -> Curve:
        return replace(curve, points=tuple((size, round(ns * link)) for size, ns in curve.points))

    def less(quantity: Quantity, factor: float) -> Quantity:
        return replace(quantity, value=round(quantity.value / factor))

    def thinner(surface: Surface) -> Surface:
        points = tuple((size, depth, round(rate / disk)) for size, depth, rate in surface.points)
        return replace(surface, points=points)

    def backend(copies: BackendCopies | None) -> BackendCopies | None:
        if copies is None:
            return None
        return replace(
            copies,
            h2d=longer(copies.h2d),
            d2h=longer(copies.d2h),
            h2d_scattered=longer(copies.h2d_scattered),
            d2h_scattered=longer(copies.d2h_scattered),
            duplex_bytes_per_s=less(copies.duplex_bytes_per_s, link),
        )

    pcie = profile.pcie
    assert pcie.backends is not None
    assert pcie.zero_copy_h2d is not None
    assert pcie.zero_copy_d2h is not None
    return replace(
        profile,
        pcie=replace(
            pcie,
            h2d=longer(pcie.h2d),
            d2h=longer(pcie.d2h),
            zero_copy_h2d=longer(pcie.zero_copy_h2d),
            zero_copy_d2h=longer(pcie.zero_copy_d2h),
            duplex_bytes_per_s=less(pcie.duplex_bytes_per_s, link),
            backends=replace(
                pcie.backends,
                **{
                    name: backend(getattr(pcie.backends, name))
                    for name in ("auto", "staged", "zero_copy", "direct")
                },
            ),
        ),
        disk=replace(
            profile.disk,
            read_bytes_per_s=thinner(profile.disk.read_bytes_per_s),
            write_bytes_per_s=thinner(profile.disk.write_bytes_per_s),
        ),
    )
