"""Made-up prefixes: shares, groups by Zipf's law, the same rows every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_helpers import check_rows, opened, rows_of, write

from hicache.errors import InputError
from traces.bailian import BailianReader
from traces.lengths_csv import BurstGPTReader
from traces.rows import Layout, RowStream
from traces.synthetic_prefixes import synthetic_prefixes

HEADER = "Timestamp,Request tokens,Response tokens\n"


def lengths_only(folder: Path, prompts: list[int]) -> RowStream:
    lines = [f"{number},{tokens},1\n" for number, tokens in enumerate(prompts)]
    return opened(BurstGPTReader(), write(folder / "t.csv", HEADER + "".join(lines)))


def test_prompts_of_a_group_start_alike_and_end_apart(tmp_path: Path) -> None:
    stream = lengths_only(tmp_path, [100, 100, 201, 15])
    made = synthetic_prefixes(stream, share=0.5, groups=1, zipf=1, seed=0)
    rows = rows_of(made)
    assert made.layout == Layout(0)
    assert [r.lengths for r in rows] == [[16] * 3 + [52], [16] * 3 + [52], [16] * 6 + [105], [15]]
    shared = [r.hash_ids[:-1] for r in rows]
    assert shared == [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3, 4, 5], []]
    assert len({r.hash_ids[-1] for r in rows}) == 4
    assert "groups, drawn by Zipf's law with exponent 1, seed 0" in made.notes[-1]
    check_rows(rows, 0)


def test_the_share_may_be_nothing_or_all(tmp_path: Path) -> None:
    stream = lengths_only(tmp_path, [160, 160])
    none = rows_of(synthetic_prefixes(stream, share=0, groups=3, zipf=0, seed=1))
    assert [r.lengths for r in none] == [[160], [160]]
    whole = rows_of(synthetic_prefixes(stream, share=1, groups=1, zipf=0, seed=1))
    assert [r.hash_ids for r in whole] == [list(range(10))] * 2


def test_groups_are_drawn_by_zipfs_law(tmp_path: Path) -> None:
    stream = lengths_only(tmp_path, [64] * 20_000)
    made = synthetic_prefixes(stream, share=1, groups=4, zipf=1, seed=7)
    firsts = [row.hash_ids[0] for row in rows_of(made)]
    counts = [firsts.count(each) for each in sorted(set(firsts))]
    total = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert counts == pytest.approx([20_000 / k / total for k in (1, 2, 3, 4)], rel=0.05)
    assert [row.hash_ids[0] for row in rows_of(made)] == firsts
    other = synthetic_prefixes(stream, share=1, groups=4, zipf=1, seed=8)
    assert [row.hash_ids[0] for row in rows_of(other)] != firsts


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"share": 1.5}, "share is 1.5"),
        ({"share": float("nan")}, "share is nan"),
        ({"groups": 0}, "groups is 0"),
        ({"groups": 1 << 21}, "groups is 2097152"),
        ({"zipf": -1}, "zipf is -1"),
        ({"zipf": float("inf")}, "zipf is inf"),
    ],
)
def test_bad_parameters(tmp_path: Path, changed: dict[str, float], reason: str) -> None:
    stream = lengths_only(tmp_path, [64])
    parameters = {"share": 0.5, "groups": 2, "zipf": 1, "seed": 0} | changed
    with pytest.raises(InputError, match=reason):
        synthetic_prefixes(stream, **parameters)  # type: ignore[arg-type]


def test_a_trace_with_ids_is_refused(tmp_path: Path) -> None:
    turn = '{"chat_id": 1, "timestamp": 0, "input_length": 4, "output_length": 0, "hash_ids": [5]}'
    stream = opened(BailianReader(), write(tmp_path / "t", turn))
    with pytest.raises(InputError, match="this one has its own"):
        synthetic_prefixes(stream, share=0.5, groups=2, zipf=1, seed=0)
