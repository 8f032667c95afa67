"""Links without a sidecar: what would be sent is kept, and orders come from the test."""

from __future__ import annotations

import queue
from typing import Any


class FakeSchedulerLink:
    """A scheduler link in this process."""

    def __init__(self, extent_blocks: int, extents: int, granted: list[int]) -> None:
        self.setup = {"extent_blocks": extent_blocks, "extents": extents, "granted": granted}
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self.sent: queue.Queue[dict[str, Any]] = queue.Queue()
        self.demands: queue.Queue[dict[str, Any]] = queue.Queue()

    def receive(self) -> dict[str, Any] | None:
        """The next order of the test."""
        return self.orders.get()

    def send(self, message: dict[str, Any]) -> None:
        """Keeps a message; demands have a queue of their own."""
        (self.demands if message["type"] == "demand" else self.sent).put(message)

    def order(self, **order: Any) -> None:
        """Gives an order."""
        self.orders.put(order)

    def answer(self) -> dict[str, Any]:
        """The next reply, within 20 s."""
        return self.sent.get(timeout=20)


class FakeWorkerLink:
    """The control page of a worker link: what is ready is said by the test."""

    def __init__(self) -> None:
        self.setup = {"device": "host", "chunk_bytes": 4096, "layer_chunks": [1, 1], "kv_chunks": 8}
        self.number = 0
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self.sent: queue.Queue[dict[str, Any]] = queue.Queue()
        self.applied: list[int] = []
        self.waits: list[tuple[int, int]] = []
        self.done: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int, int]] = []

    def begin_pass(self) -> int:
        """Counts a pass."""
        self.number += 1
        return self.number

    def end_pass(self, number: int, ns: int, stall_ns: int, tokens: int, sequences: int) -> None:
        """Keeps the end of a pass."""
        self.ended.append((number, tokens, sequences))

    def wait_ready(self, layer: int, number: int) -> None:
        """Keeps a wait."""
        self.waits.append((layer, number))

    def publish_done(self, layer: int, number: int) -> None:
        """Keeps a publication."""
        self.done.append((layer, number))

    def reserve(self) -> None:
        """Reserves nothing."""

    def receive(self) -> dict[str, Any] | None:
        """The next order of the test."""
        return self.orders.get()

    def send(self, message: dict[str, Any]) -> None:
        """Keeps a message."""
        self.sent.put(message)

    def apply(self, order: int) -> bool:
        """Keeps an order's id; the order 13 is refused."""
        self.applied.append(order)
        return order != 13
