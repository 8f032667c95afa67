"""What the engine lacks reaches the sidecar, also when it has learned something else in between."""

from __future__ import annotations

import queue
import unittest
from typing import Any



from sluice_vllm.demand import Demand, DemandReporter


class Link:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: queue.Queue[dict[str, Any]] = queue.Queue()

    def send(self, message: dict[str, Any]) -> None:
        self.sent.put(message)

    def waiting(self) -> int:
        """The waiting requests of the next message."""
        return self.sent.get(timeout=5)["waiting"]


def demand(waiting: int) -> Demand:
    """A demand of requests that wait for nothing."""
    return Demand(wanted_blocks=0, waiting=waiting, running=0, blocked=())


class AReporter(unittest.TestCase):
    def setUp(self) -> None:
        self.link = Link()
        self.reporter = DemandReporter(self.link)  # type: ignore[arg-type]

    def test_a_demand_is_sent_once(self) -> None:
        for _ in range(3):
            self.reporter.offer(demand(1))
        self.assertEqual(self.link.waiting(), 1)
        with self.assertRaises(queue.Empty):
            self.link.sent.get(timeout=0.05)

    def test_a_demand_is_sent_again_after_the_sidecar_has_learned_another(self) -> None:
        self.reporter.offer(demand(1))
        self.assertEqual(self.link.waiting(), 1)
        # The engine was held without requests, and the next request makes the same demand.
        self.reporter.forget()
        self.reporter.offer(demand(1))
        self.assertEqual(self.link.waiting(), 1)


if __name__ == "__main__":
    unittest.main()
