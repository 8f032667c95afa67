"""vLLM's schedulers over a block budget that the sidecar grants and takes back (`--scheduler-cls`)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import vllm
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from sluice_vllm.block_budget import BlockBudget
from sluice_vllm.core import CoreGate
from sluice_vllm.demand import MOST_BLOCKED, AllocationWatch, Demand, DemandReporter
from sluice_vllm.link import SchedulerLink, build_name
from sluice_vllm.retire import RetirePlanner

logger = init_logger("vllm.sluice")


class BudgetedScheduler:
    """What Sluice adds to a scheduler of vLLM; the class comes before it in the bases."""

    steps_closed = False
    """True while the steps in flight end: then there are no requests to schedule."""

    def __init__(self, *args: Any, sluice_link: SchedulerLink | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pool = self.kv_cache_manager.block_pool
        self._link = sluice_link or SchedulerLink.connect(
            {
                "build": build_name(),
                "engine": f"vllm {vllm.__version__.split('+')[0]}",
                "blocks": pool.num_gpu_blocks,
                "block_tokens": self.block_size,
                "max_model_len": self.max_model_len,
            }
        )
        setup = self._link.setup
        self.block_budget = BlockBudget(pool, setup["extent_blocks"], setup["extents"], setup["granted"])
        self._planner = RetirePlanner(self.block_budget, self._block_ids)
        self._watch = AllocationWatch(self.kv_cache_manager)
        self._reporter = DemandReporter(self._link)
        self._starved = False
        self.core_gate = CoreGate(self._link, self)
        self.core_gate.start()
        logger.info("sluice: %d of %d KV blocks have memory", self.block_budget.usable_blocks + 1, len(pool.blocks))

    # --- vLLM's interface

    def has_requests(self) -> bool:
        """As vLLM's, but no while steps in flight end, so that no further one is scheduled."""
        return not self.steps_closed and super().has_requests()

    def add_request(self, request: Any) -> None:
        """As vLLM's; the sidecar learns of it."""
        super().add_request(request)
        self._starved = False
        self._report()

    def finish_requests(self, request_ids: Any, finished_status: RequestStatus) -> Any:
        """As vLLM's; the sidecar learns of it."""
        finished = super().finish_requests(request_ids, finished_status)
        self._starved = False
        self._report()
        return finished

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """As vLLM's, but a request above the whole budget does not block those behind it."""
        above = self._take_requests_above_budget()
        self._watch.begin_step()
        try:
            output = super().schedule(throttle_prefills)
        finally:
            # As vLLM does with requests that it skips: they come first again.
            self.waiting.prepend_requests(reversed(above))
        alone = not self.running and not self.kv_holding_waiting and len(self.waiting) == len(above)
        self._starved = bool(above) and alone and output.total_num_scheduled_tokens == 0
        self._report()
        return output

    # --- orders of the sidecar, on the engine's thread, between two steps

    def sluice_hold(self) -> dict[str, Any]:
        """What the sidecar learns when the engine is held."""
        self._reporter.forget()
        for request in self.running:
            assert request.num_in_flight_tokens == 0, f"{request.request_id} is in a step while the engine is held"
        return {
            "idle": self.block_budget.idle(),
            "wanted_blocks": self._lacking(self._next_requests()),
            "waiting": self._waiting_count(),
            "running": len(self.running),
        }

    def sluice_retire(self, extents: int) -> dict[str, Any]:
        """Chooses extents, preempts the requests in them and withdraws them."""
        plan = self._planner.plan(extents, self._victims())
        self._preempt(plan.preempt)
        self.block_budget.withdraw(plan.extents)
        return {"extents": plan.extents, "preempted": len(plan.preempt)}

    def sluice_resume(self, granted: list[int], withdrawn: list[int]) -> None:
        """Takes over the extents that have memory now, and those that have none any more."""
        self.block_budget.withdraw(withdrawn)
        self.block_budget.grant(granted)
        self._starved = False

    def sluice_starved(self) -> bool:
        """Whether all requests are above the budget, so that a step would do nothing."""
        return self._starved and not self.has_finished_requests()

    # --- helpers

    def _victims(self) -> list[Any]:
        """Running requests in the order in which vLLM preempts them."""
        if self.policy == SchedulingPolicy.PRIORITY:
            return sorted(self.running, key=lambda r: (r.priority, r.arrival_time), reverse=True)
        return self.running[::-1]

    def _preempt(self, requests: Iterable[Any]) -> None:
        """As `Scheduler.reset_prefix_cache` preempts, but only these requests."""
        now = time.monotonic()
        for request in requests:
            self.running.remove(request)
            self._preempt_request(request, now, drop_stale_output=True)
            # The model runner must not take it for one that was scheduled in the step before.
            self.prev_step_scheduled_req_ids.discard(request.request_id)

    def _block_ids(self, request: Any) -> list[int]:
        return [block for group in self.kv_cache_manager.get_block_ids(request.request_id) for block in group]

    def _blocks_needed(self, request: Any) -> int:
        """Blocks that hold all tokens of a request, and the next one if it runs."""
        tokens = request.num_tokens + (1 if request.status == RequestStatus.RUNNING else 0)
        return -(-min(tokens, self.max_model_len) // self.block_size)

    def _take_requests_above_budget(self) -> list[Any]:
        usable = self.block_budget.usable_blocks
        above = [request for request in self.waiting if self._blocks_needed(request) > usable]
        if above:
            self.waiting.remove_requests(above)
        return above

    def _next_requests(self) -> list[Any]:
        """Running requests, and the waiting ones that the engine has places for."""
        places = max(0, self.max_num_active_reqs - len(self.running))
        return self.running + [request for _, request in zip(range(places), self.waiting)]

    def _blocked(self) -> list[Any]:
        usable = self.block_budget.usable_blocks
        return [
            request
            for request in self.waiting
            if self._watch.lacked(request)
            or request.status == RequestStatus.PREEMPTED
            or self._blocks_needed(request) > usable
        ]

    def _lacking(self, requests: Iterable[Any]) -> int:
        need = sum(max(0, self._blocks_needed(r) - len(self._block_ids(r))) for r in requests)
        return max(0, need - self.kv_cache_manager.block_pool.get_num_free_blocks())

    def _waiting_count(self) -> int:
        return len(self.waiting) + len(self.kv_holding_waiting)

    def _report(self) -> None:
        blocked = self._blocked() if self.waiting else []
        named = sorted(((r.request_id[:256], self._blocks_needed(r)) for r in blocked), key=lambda b: -b[1])
        self._reporter.offer(
            Demand(self._lacking(blocked), self._waiting_count(), len(self.running), tuple(named[:MOST_BLOCKED]))
        )


class SluiceScheduler(BudgetedScheduler, Scheduler):
    """`Scheduler` under a block budget."""


class SluiceAsyncScheduler(BudgetedScheduler, AsyncScheduler):
    """`AsyncScheduler` under a block budget."""
