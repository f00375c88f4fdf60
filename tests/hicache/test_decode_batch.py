"""A decode batch keeps sums; here every request is looked at."""

from __future__ import annotations

from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hicache.requests import Request
from hicache.running import DecodeBatch, Running

actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 12)),
        st.tuples(st.just("advance"), st.integers(1, 9), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
    ),
    max_size=30,
)


@given(actions, st.sampled_from([1, 2, 3, 16]))
@examples(100)
def test_sums_are_those_of_the_single_requests(actions, page):
    batch = DecodeBatch(page)
    naive: dict[int, list[int]] = {}  # order: [tokens in the cache, tokens to make]
    runs: dict[int, Running] = {}
    for order, (action, number, remaining) in enumerate(actions):
        if action == "add":
            run = Running(Request(order, 0, number, remaining + 1, (), 0), order, 0)
            batch.add(run, number, remaining)
            naive[order], runs[order] = [number, remaining], run
        elif action == "advance" and naive:
            steps = min(number, batch.steps_to_first_finish)
            batch.steps += steps
            done = set()
            for each, state in naive.items():
                state[0], state[1] = state[0] + steps, state[1] - steps
                if not state[1]:
                    done.add(each)
            popped = []
            while (run := batch.pop_finished()) is not None:
                popped.append(run.order)
            assert popped == sorted(done)
            for each in done:
                del naive[each]
        elif action == "remove" and naive:
            newest = batch.newest()
            assert newest.order == max(naive)
            order_out = sorted(naive)[number % len(naive)]
            batch.remove(runs[order_out])
            del naive[order_out]
        assert batch.size == len(naive)
        assert [run.order for run in batch] == list(naive)
        assert batch.requests == tuple(naive)  # they are numbered as they are ordered here
        assert batch.context_tokens == sum(tokens for tokens, _ in naive.values())
        assert batch.outstanding_tokens() == sum(left for _, left in naive.values())
        for each, (tokens, _) in naive.items():
            assert batch.kv_tokens(runs[each]) == tokens
        if naive:
            assert batch.steps_to_first_finish == min(left for _, left in naive.values())

        def pages(steps: int, states: list[list[int]]) -> int:
            return sum(-(-(tokens + steps) // page) - -(-tokens // page) for tokens, _ in states)

        states = list(naive.values())
        for steps in (0, 1, 2, 5, 17, 40):
            assert batch.pages_for(steps) == pages(steps, states)
        for room in (0, 1, 3, 10):
            most = batch.steps_within(room, 20)
            assert pages(most, states) <= room
            assert most == 20 or pages(most + 1, states) > room
