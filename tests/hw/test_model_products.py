"""What cuBLAS is told about multiprocessors that products leave to a load; without cuBLAS."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hw.model import products


@pytest.fixture
def told(monkeypatch) -> Iterator[list[tuple[int | None, int]]]:
    """(handle, multiprocessors) of each call, on a GPU that has 132."""
    calls: list[tuple[int | None, int]] = []

    class Library:
        def __init__(self, name: str) -> None:
            assert name == "libcublas.so.13"

        def cublasSetSmCountTarget(self, handle, count) -> int:
            calls.append((handle.value, count.value))
            return 0 if count.value < 200 else 7

    monkeypatch.setattr(products.ctypes, "CDLL", Library)
    monkeypatch.setattr(products.torch.version, "cuda", "13.0")
    cuda = SimpleNamespace(
        current_device=lambda: 0,
        current_blas_handle=lambda: 77,
        get_device_properties=lambda device: SimpleNamespace(multi_processor_count=132),
    )
    monkeypatch.setattr(products.torch, "cuda", cuda)
    products._cublas.cache_clear()
    yield calls
    products._cublas.cache_clear()


def test_fewer_inside_and_all_again_behind(told):
    with products.leaving(4):
        assert told == [(77, 128)]
    assert told == [(77, 128), (77, 0)]


def test_also_behind_an_error_and_never_less_than_one(told):
    with pytest.raises(ValueError, match="it will not come"), products.leaving(200):
        raise ValueError("it will not come")
    assert told == [(77, 1), (77, 0)]


def test_none(told):
    with products.leaving(0):
        pass
    assert told == []


def test_what_cublas_refuses_is_said(told):
    said = r"cublasSetSmCountTarget\(332\): cuBLAS status 7"
    with pytest.raises(RuntimeError, match=said), products.leaving(-200):
        pass


def unfound(name: str) -> object:
    raise OSError(f"{name}: no such file")


@pytest.mark.parametrize("open_library", [unfound, lambda name: object()])
def test_without_a_cublas_that_can_be_told_products_are_as_ever(
    told, monkeypatch, capsys, open_library
):
    monkeypatch.setattr(products.ctypes, "CDLL", open_library)
    entered = 0
    for _ in range(2):
        with products.leaving(4):
            entered += 1
    assert entered == 2
    assert told == []
    assert capsys.readouterr().err.count("products leave no multiprocessors") == 1
