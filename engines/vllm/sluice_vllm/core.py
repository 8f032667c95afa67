"""Holds vLLM's engine core between two steps while the sidecar changes memory.

While held the core runs no step, and still accepts requests, aborts and utility calls. Two methods of
`EngineCoreProc` call this gate: `has_work` (an idle core must notice an order) and `_process_engine_step`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from vllm.v1.engine import EngineCoreRequestType

from sluice_vllm.link import SchedulerLink, leave_on_failure


class HeldScheduler(Protocol):
    """What the gate asks of the scheduler, on the engine's thread."""

    steps_closed: bool

    def sluice_hold(self) -> dict[str, Any]: ...
    def sluice_retire(self, extents: int) -> dict[str, Any]: ...
    def sluice_resume(self, granted: list[int], withdrawn: list[int]) -> None: ...
    def sluice_starved(self) -> bool: ...
    def get_num_unfinished_requests(self) -> int: ...


class CoreGate:
    """Orders of the sidecar for one engine core; a thread receives them, the engine's thread carries them out."""

    def __init__(self, link: SchedulerLink, scheduler: HeldScheduler) -> None:
        self._link = link
        self._scheduler = scheduler
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._held = False
        self._engine_inputs: Any = None

    def start(self) -> None:
        """Receives orders from now on."""
        threading.Thread(target=self._receive, name="sluice-scheduler-link", daemon=True).start()

    @property
    def held(self) -> bool:
        """Whether the engine is held."""
        return self._held

    def has_work(self, engine: Any, has_work: Callable[[Any], bool]) -> bool:
        """`EngineCoreProc.has_work`: an order is work, and requests above the budget alone are none."""
        self._engine_inputs = engine.input_queue
        if not engine.is_running():
            return has_work(engine)
        if self._held or not self._orders.empty():
            return True
        if self._scheduler.sluice_starved() and not engine.batch_queue and not engine._idle_state_callbacks:
            return False
        return has_work(engine)

    def step(self, engine: Any, step: Callable[[Any], bool]) -> bool:
        """`EngineCoreProc._process_engine_step`: a step, or what the sidecar orders instead of one."""
        self._engine_inputs = engine.input_queue
        if (not self._held and self._orders.empty()) or self._may_end(engine):
            return step(engine)
        self._finish_steps(engine, step)
        self._serve(engine)
        return False

    def _may_end(self, engine: Any) -> bool:
        """Whether the engine shuts down and has nothing to compute: its last step only cleans up."""
        return not engine.is_running() and self._scheduler.get_num_unfinished_requests() == 0

    def _finish_steps(self, engine: Any, step: Callable[[Any], bool]) -> None:
        """Ends every step in flight (async scheduling, batch queue) and schedules none."""
        self._scheduler.steps_closed = True
        try:
            while engine.batch_queue:
                step(engine)
        finally:
            self._scheduler.steps_closed = False

    def _serve(self, engine: Any) -> None:
        while True:
            while not self._orders.empty():
                self._carry_out(self._orders.get())
            if not self._held or _is_asked_to_shut_down(engine):
                return
            engine._handle_client_request(*engine.input_queue.get())

    def _carry_out(self, order: dict[str, Any]) -> None:
        kind = order["type"]
        if kind == "hold":
            self._held = True
            self._link.send({"type": "held", "id": order["id"]} | self._scheduler.sluice_hold())
        elif kind == "retire" and self._held:
            self._link.send({"type": "retired", "id": order["id"]} | self._scheduler.sluice_retire(order["extents"]))
        elif kind == "resume" and self._held:
            self._scheduler.sluice_resume(order["granted"], order["withdrawn"])
            self._held = False
        else:
            raise RuntimeError(f"the sidecar sent {kind} at a wrong time")

    @leave_on_failure
    def _receive(self) -> None:
        while True:
            order = self._link.receive()
            if order is None:
                continue
            self._orders.put(order)
            # The engine's thread looks at its orders when its input queue wakes it.
            if self._engine_inputs is not None:
                self._engine_inputs.put_nowait((EngineCoreRequestType.WAKEUP, None))


def _is_asked_to_shut_down(engine: Any) -> bool:
    """Whether a signal came that vLLM's loop has not handled yet."""
    return engine.shutdown_state.name == "REQUESTED"
