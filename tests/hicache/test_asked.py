"""What a device is told of a decode batch is kept from burst to burst, and is right at each."""

from __future__ import annotations

from random import Random

from adversarial_lanes import AdversarialLanes, in_turn
from engine_runs import call_at, drain
from simpy import Environment
from small_workloads import random_workload

from hicache.engine import Engine
from hicache.node import DEVICE
from hicache.operations import Decode


class Asks:
    """Lanes that ask of each burst what a device would, and look it up."""

    def __init__(self, inner: AdversarialLanes) -> None:
        self._inner = inner
        self.engine: Engine | None = None
        self.told = self.kept = 0
        self._before: list[object] = []

    def submit(self, operation):
        if isinstance(operation, Decode):
            assert self.engine is not None
            scheduler = self.engine.scheduler
            steps, told = scheduler.decoding()
            batch = scheduler.decode.batch
            assert operation.requests == tuple(run.request.number for run in batch)
            for run, (request, offset, head, tail) in zip(batch, told, strict=True):
                assert run.node is not None
                assert request is run.request
                assert offset + steps == batch.kv_tokens(run)
                assert head == self.engine.tree.pages_from(run.node, DEVICE, 0)
                assert tail is run.private_pages
            self.told += len(told)
            self.kept += sum(any(each is one for one in self._before) for each in told)
            self._before = list(told)
        return self._inner.submit(operation)

    def end_burst(self, pending) -> None:
        self._inner.end_burst(pending)


def test_what_is_kept_of_a_batch_is_what_is_there():
    told = kept = 0
    for seed in range(300):
        workload = random_workload(Random(seed))
        if workload.options.page_ids != "named":
            continue
        env = Environment(0)
        lanes = Asks(AdversarialLanes(env, in_turn(workload.fates)))
        engine = lanes.engine = Engine(env, lanes, workload.options)
        for at_ns, number in workload.aborts:
            call_at(env, at_ns, lambda number=number, engine=engine: engine.abort(number))
        engine.serve(workload.requests())
        drain(env)
        told, kept = told + lanes.told, kept + lanes.kept
    assert told > kept > 30
