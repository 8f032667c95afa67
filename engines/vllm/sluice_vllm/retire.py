"""Which extents of KV leave and which requests that preempts, when the sidecar takes memory back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sluice_vllm.block_budget import BlockBudget


@dataclass(frozen=True)
class RetirePlan:
    """What leaves: extents, and the requests that are preempted for them in this order."""

    extents: list[int]
    preempt: list[Any]


class RetirePlanner:
    """Chooses idle extents first, then the fewest of the requests that vLLM itself preempts first.

    The request that vLLM preempts last keeps its blocks, so there is always one that ends.
    """

    def __init__(self, budget: BlockBudget, blocks_of: Callable[[Any], Sequence[int]]) -> None:
        """`blocks_of` gives the ids of the blocks that a request holds."""
        self._budget = budget
        self._blocks_of = blocks_of

    def plan(self, wanted: int, victims: Sequence[Any]) -> RetirePlan:
        """Chooses `wanted` extents, or fewer; `victims` are the running requests as vLLM preempts them.

        A block that something else than a victim holds keeps its extent.
        """
        idle = self._budget.idle()
        if len(idle) >= wanted:
            return RetirePlan(idle[:wanted], [])
        lacking = wanted - len(idle)
        chosen = self._cheapest(lacking, list(victims)[:-1])
        return RetirePlan(idle + self._freed_by(chosen)[:lacking], chosen)

    def _cheapest(self, lacking: int, victims: list[Any]) -> list[Any]:
        chosen: list[Any] = []
        for victim in victims:
            if len(self._freed_by(chosen)) >= lacking:
                break
            chosen.append(victim)
        reached = min(lacking, len(self._freed_by(chosen)))
        # The request that vLLM preempts last is spared first.
        for victim in reversed(chosen.copy()):
            fewer = [other for other in chosen if other is not victim]
            if len(self._freed_by(fewer)) >= reached:
                chosen = fewer
        return chosen

    def _freed_by(self, victims: list[Any]) -> list[int]:
        """Extents that become idle when these requests lose their blocks, in ascending order."""
        held: dict[int, int] = {}
        for victim in victims:
            for block_id in self._blocks_of(victim):
                held[block_id] = held.get(block_id, 0) + 1
        touched = self._budget.extents_of(held) - {0}
        return sorted(extent for extent in touched if self._is_freed(extent, held))

    def _is_freed(self, extent: int, held: dict[int, int]) -> bool:
        return all(held.get(block_id, 0) >= count for block_id, count in self._budget.references(extent).items())
