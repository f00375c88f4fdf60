"""A local Ray cluster of a head without work and two workers, for tests: run as a process.

It prints the address; each line on standard input kills one of the two, at once and without a word
to the cluster; at the end of input it takes the cluster down.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    """Start, obey, take down."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": 80 << 20,
            # A dead worker is noticed within a second.
            "_system_config": {
                "health_check_initial_delay_ms": 0,
                "health_check_period_ms": 250,
                "health_check_failure_threshold": 4,
            },
        },
    )
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
        print(f"address {cluster.address}", flush=True)
        for _ in sys.stdin:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("killed", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
