"""What a scheduler's requests lack of KV: blocks, and the requests that wait for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice_vllm.link import SchedulerLink, leave_on_failure

MOST_BLOCKED = 1024
"""Requests that one message names; those that need most come first."""

LEAST_INTERVAL_S = 0.01
"""Least time between two messages."""


@dataclass(frozen=True)
class Demand:
    """Blocks that the last step lacked, and the requests that wait for blocks with the blocks that each needs."""

    wanted_blocks: int
    waiting: int
    running: int
    blocked: tuple[tuple[str, int], ...] = ()

    def message(self) -> dict[str, Any]:
        """The message of the link."""
        return {
            "type": "demand",
            "wanted_blocks": self.wanted_blocks,
            "waiting": self.waiting,
            "running": self.running,
            "blocked": [[name, blocks] for name, blocks in self.blocked],
        }


class AllocationWatch:
    """Stands in for `KVCacheManager.allocate_slots` and remembers which requests got no blocks in this step."""

    def __init__(self, manager: Any) -> None:
        self._allocate: Callable[..., Any] = manager.allocate_slots
        self._lacked: dict[str, Any] = {}
        manager.allocate_slots = self._allocate_slots

    def begin_step(self) -> None:
        """Forgets the last step."""
        self._lacked.clear()

    def lacked(self, request: Any) -> bool:
        """Whether this request asked for blocks in the last step and got none."""
        return request.request_id in self._lacked

    def _allocate_slots(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = self._allocate(request, *args, **kwargs)
        if blocks is None:
            self._lacked[request.request_id] = request
        return blocks


class DemandReporter:
    """Sends the newest demand when it changes, at most every 10 ms, from a thread of its own."""

    def __init__(self, link: SchedulerLink) -> None:
        self._link = link
        self._changed = threading.Condition()
        self._newest: Demand | None = None
        self._sent: Demand | None = None
        threading.Thread(target=self._serve, name="sluice-demand", daemon=True).start()

    def offer(self, demand: Demand) -> None:
        """Makes this the newest demand."""
        with self._changed:
            if demand != self._newest:
                self._newest = demand
                self._changed.notify()

    def forget(self) -> None:
        """The sidecar has learned something newer, so the demand is sent again even if it is what was sent last."""
        with self._changed:
            self._sent = None
            self._changed.notify()

    @leave_on_failure
    def _serve(self) -> None:
        while True:
            with self._changed:
                while self._newest == self._sent:
                    self._changed.wait()
                # Before it is sent: what `forget` says afterwards holds.
                demand = self._sent = self._newest
            assert demand is not None, "a demand that differs from what was sent exists"
            self._link.send(demand.message())
            time.sleep(LEAST_INTERVAL_S)
