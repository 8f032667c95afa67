"""Which KV blocks of vLLM's block pool have memory, by extents that the sidecar grants and takes back.

vLLM believes in all blocks of its pool. Blocks of an extent without memory are in no queue and in no prefix cache,
so vLLM never allocates or hits them. `BlockPool.num_gpu_blocks` counts the blocks that have memory, so usage and
`reset_prefix_cache` stay true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from sluice_vllm.errors import BudgetError


class GrantedFreeQueue(FreeKVCacheBlockQueue):
    """vLLM's free queue, but a block without memory never enters it, whoever frees it."""

    def __init__(self, blocks: list[KVCacheBlock], granted: bytearray) -> None:
        super().__init__(blocks)
        self._granted = granted

    def append(self, block: KVCacheBlock) -> None:
        """Adds one block at the end, if it has memory."""
        if self._granted[block.block_id]:
            super().append(block)

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Adds the blocks that have memory at the end."""
        super().append_n(self._with_memory(blocks))

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Adds the blocks that have memory at the front."""
        super().prepend_n(self._with_memory(blocks))

    def _with_memory(self, blocks: Iterable[KVCacheBlock]) -> list[KVCacheBlock]:
        return [block for block in blocks if self._granted[block.block_id]]


class BlockBudget:
    """The extents of one `BlockPool` that have memory.

    Extent `e` holds the blocks `e * extent_blocks` up to the next extent. Extent 0 holds vLLM's null block and never
    leaves. Blocks behind the last whole extent never have memory. Every method runs on the engine's thread.
    """

    def __init__(self, pool: BlockPool, extent_blocks: int, extents: int, granted: Iterable[int]) -> None:
        """Takes over a pool of which no block is in use but the null block.

        Raises `BudgetError` if the extents do not fit the pool, or if extent 0 is not granted.
        """
        if extent_blocks < 1 or extents < 1 or extent_blocks * extents > len(pool.blocks):
            raise BudgetError(
                f"{extents} extents of {extent_blocks} blocks do not fit a pool of {len(pool.blocks)} blocks"
            )
        if pool.get_num_free_blocks() != len(pool.blocks) - 1:
            raise BudgetError("the block pool is in use already")
        self._pool = pool
        self._extent_blocks = extent_blocks
        self._extents = extents
        self._granted: set[int] = set()
        self._with_memory = bytearray(len(pool.blocks))
        self._count = 0
        first = set(granted)
        if 0 not in first:
            raise BudgetError("extent 0 holds the null block and must be granted")
        pool.free_block_queue = GrantedFreeQueue([], self._with_memory)
        self.grant(sorted(first))

    @property
    def extent_blocks(self) -> int:
        """Blocks of one extent."""
        return self._extent_blocks

    @property
    def granted(self) -> frozenset[int]:
        """The extents that have memory."""
        return frozenset(self._granted)

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold at once: those with memory but the null block."""
        return self._count - 1

    def grant(self, extents: Iterable[int]) -> None:
        """Lets vLLM use the blocks of these extents; one that has memory already stays as it is."""
        new = [extent for extent in dict.fromkeys(extents) if extent not in self._granted]
        for extent in new:
            self._check(extent)
        blocks: list[KVCacheBlock] = []
        for extent in new:
            blocks += self._blocks_of(extent)
            self._mark(extent, self._blocks_of(extent), 1)
        # Blocks without content are used before cached ones are evicted, those of the first extent first.
        self._pool.free_block_queue.prepend_n([block for block in blocks if _is_free(block)])

    def withdraw(self, extents: Iterable[int]) -> None:
        """Takes the blocks of these extents from the free queue and the prefix cache.

        Raises `BudgetError`, before anything changes, if a block is in use or the extent is the first. An extent
        without memory stays as it is.
        """
        leaving = [extent for extent in dict.fromkeys(extents) if extent in self._granted]
        for extent in leaving:
            if extent == 0:
                raise BudgetError("extent 0 holds the null block and never leaves")
            if not self.is_idle(extent):
                raise BudgetError(f"extent {extent} has blocks in use")
        for extent in leaving:
            blocks = self._blocks_of(extent)
            for block in blocks:
                self._pool.free_block_queue.remove(block)
                self._forget(block)
            self._mark(extent, blocks, 0)

    def is_idle(self, extent: int) -> bool:
        """Whether no request references a block of this extent (its blocks are free or cached)."""
        return extent != 0 and all(_is_free(block) for block in self._blocks_of(extent))

    def idle(self) -> list[int]:
        """Granted extents that no request references, the one whose last use is oldest first."""
        last_use: dict[int, int] = {}
        # The free queue is vLLM's eviction order: what was used last is last.
        for position, block in enumerate(self._pool.free_block_queue.get_all_free_blocks()):
            last_use[block.block_id // self._extent_blocks] = position
        idle = [extent for extent in self._granted if self.is_idle(extent)]
        return sorted(idle, key=lambda extent: last_use[extent])

    def extents_of(self, block_ids: Iterable[int]) -> set[int]:
        """The extents in which these blocks lie."""
        return {block_id // self._extent_blocks for block_id in block_ids}

    def references(self, extent: int) -> dict[int, int]:
        """How often each block of this extent is referenced, without blocks that are free."""
        return {block.block_id: block.ref_cnt for block in self._blocks_of(extent) if not _is_free(block)}

    def _blocks_of(self, extent: int) -> list[KVCacheBlock]:
        first = extent * self._extent_blocks
        return self._pool.blocks[first : first + self._extent_blocks]

    def _check(self, extent: int) -> None:
        if not 0 <= extent < self._extents:
            raise BudgetError(f"extent {extent} does not exist, there are {self._extents}")

    def _mark(self, extent: int, blocks: list[KVCacheBlock], value: int) -> None:
        for block in blocks:
            self._with_memory[block.block_id] = value
        if value:
            self._granted.add(extent)
            self._count += len(blocks)
        else:
            self._granted.discard(extent)
            self._count -= len(blocks)
        self._pool.num_gpu_blocks = self._count

    def _forget(self, block: KVCacheBlock) -> None:
        self._pool._maybe_evict_cached_block(block)


def _is_free(block: Any) -> bool:
    return block.ref_cnt == 0 and not block.is_null
