"""The block budget over vLLM's real block pool, against a model of sets."""

from __future__ import annotations

import random
import unittest

from tests.needs import needs_vllm

needs_vllm()

from vllm.v1.core.block_pool import BlockPool  # noqa: E402
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id  # noqa: E402

from sluice_vllm.block_budget import BlockBudget  # noqa: E402
from sluice_vllm.errors import BudgetError  # noqa: E402

EXTENT_BLOCKS = 4
EXTENTS = 6


def pool(blocks: int = EXTENT_BLOCKS * EXTENTS) -> BlockPool:
    return BlockPool(num_gpu_blocks=blocks, enable_caching=True, hash_block_size=16)


def cache(pool: BlockPool, block: object, name: int) -> bytes:
    """Gives a block the content `name`, as a full block of a request."""
    content = name.to_bytes(32, "little")
    pool._insert_block_hash(make_block_hash_with_group_id(content, 0), block, num_tokens=16)
    return content


def free_ids(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


class ABudget(unittest.TestCase):
    def test_only_blocks_of_granted_extents_are_allocated(self) -> None:
        blocks = pool()
        BlockBudget(blocks, EXTENT_BLOCKS, EXTENTS, [0, 3])
        self.assertEqual(blocks.get_num_free_blocks(), 7)
        taken = {block.block_id for block in blocks.get_new_blocks(7)}
        self.assertEqual(taken, {1, 2, 3, 12, 13, 14, 15})
        with self.assertRaises(ValueError):
            blocks.get_new_blocks(1)

    def test_usage_counts_blocks_that_have_memory(self) -> None:
        blocks = pool()
        budget = BlockBudget(blocks, EXTENT_BLOCKS, EXTENTS, [0, 1])
        self.assertEqual((blocks.num_gpu_blocks, budget.usable_blocks, blocks.get_usage()), (8, 7, 0.0))
        held = blocks.get_new_blocks(7)
        self.assertEqual(blocks.get_usage(), 1.0)
        budget.grant([2])
        self.assertAlmostEqual(blocks.get_usage(), 1 - 4 / 11)
        blocks.free_blocks(held)
        budget.withdraw([1, 2])
        self.assertEqual((blocks.num_gpu_blocks, blocks.get_usage()), (4, 0.0))
        self.assertTrue(blocks.reset_prefix_cache())

    def test_no_prefix_hit_on_a_withdrawn_block(self) -> None:
        blocks = pool()
        budget = BlockBudget(blocks, EXTENT_BLOCKS, EXTENTS, [0, 1])
        held = blocks.get_new_blocks(7)
        contents = {block.block_id: cache(blocks, block, block.block_id) for block in held}
        blocks.free_blocks(held)
        budget.withdraw([1])
        hits = {name for name, content in contents.items() if blocks.get_cached_block(content, [0])}
        self.assertEqual(hits, {1, 2, 3})

    def test_a_budget_that_forgets_to_evict_is_noticed(self) -> None:
        class Forgetful(BlockBudget):
            def _forget(self, block: object) -> None:
                pass

        blocks = pool()
        budget = Forgetful(blocks, EXTENT_BLOCKS, EXTENTS, [0, 1])
        held = blocks.get_new_blocks(7)
        contents = {block.block_id: cache(blocks, block, block.block_id) for block in held}
        blocks.free_blocks(held)
        budget.withdraw([1])
        self.assertIsNotNone(blocks.get_cached_block(contents[4], [0]))

    def test_the_extent_with_the_null_block_stays(self) -> None:
        budget = BlockBudget(pool(), EXTENT_BLOCKS, EXTENTS, [0, 1])
        with self.assertRaisesRegex(BudgetError, "extent 0"):
            budget.withdraw([1, 0])
        self.assertEqual(budget.granted, {0, 1}, "a refused change changes nothing")
        self.assertEqual(budget.idle(), [1])
        with self.assertRaisesRegex(BudgetError, "extent 0"):
            BlockBudget(pool(), EXTENT_BLOCKS, EXTENTS, [1])

    def test_an_extent_in_use_is_not_withdrawn(self) -> None:
        blocks = pool()
        budget = BlockBudget(blocks, EXTENT_BLOCKS, EXTENTS, [0, 1, 2])
        held = blocks.get_new_blocks(11)
        blocks.free_blocks([block for block in held if block.block_id != 5])
        with self.assertRaisesRegex(BudgetError, "extent 1 has blocks in use"):
            budget.withdraw([2, 1])
        self.assertEqual(budget.granted, {0, 1, 2})
        self.assertEqual(budget.idle(), [2])

    def test_a_freed_block_without_memory_never_enters_the_queue(self) -> None:
        blocks = pool()
        budget = BlockBudget(blocks, EXTENT_BLOCKS, EXTENTS, [0, 1])
        held = {block.block_id: block for block in blocks.get_new_blocks(7)}
        # What must not happen: memory leaves while a request holds the block.
        budget._mark(1, [held[4], held[5], held[6], held[7]], 0)
        blocks.free_blocks(held.values())
        self.assertEqual(set(free_ids(blocks)), {1, 2, 3})
        self.assertEqual(blocks.get_num_free_blocks(), 3)

    def test_extents_behind_the_pool_are_refused(self) -> None:
        with self.assertRaisesRegex(BudgetError, "do not fit"):
            BlockBudget(pool(23), EXTENT_BLOCKS, EXTENTS, [0])
        budget = BlockBudget(pool(27), EXTENT_BLOCKS, EXTENTS, [0])
        with self.assertRaisesRegex(BudgetError, "extent 6 does not exist"):
            budget.grant([1, 6])
        self.assertEqual(budget.granted, {0})

    def test_the_extent_whose_use_is_oldest_is_idle_first(self) -> None:
        blocks = pool()
        budget = BlockBudget(blocks, EXTENT_BLOCKS, EXTENTS, [0, 1, 2, 3])
        held = {block.block_id: block for block in blocks.get_new_blocks(15)}
        for block_id, block in held.items():
            cache(blocks, block, block_id)
        for extent in (2, 3, 1, 0):
            blocks.free_blocks([block for number, block in held.items() if number // EXTENT_BLOCKS == extent])
        self.assertEqual(budget.idle(), [2, 3, 1])
        hit = blocks.get_cached_block((8).to_bytes(32, "little"), [0])
        blocks.touch(hit)
        self.assertEqual(budget.idle(), [3, 1])
        blocks.free_blocks(hit)
        self.assertEqual(budget.idle(), [3, 1, 2])


class RandomOrders(unittest.TestCase):
    """The pool under a budget does what sets of blocks say, in 1,000 orders of 60 operations."""

    ORDERS = 1000
    OPERATIONS = 60

    def test_the_pool_and_a_model_of_sets_agree(self) -> None:
        forgotten = 0
        for seed in range(self.ORDERS):
            with self.subTest(seed=seed):
                order = _Order(seed, BlockBudget)
                order.run(self.OPERATIONS)
                forgotten += order.forgotten
        self.assertGreater(forgotten, self.ORDERS, "cached blocks were withdrawn at least once an order")

    def test_a_budget_that_leaves_blocks_in_the_queue_is_noticed(self) -> None:
        class Leaky(BlockBudget):
            def withdraw(self, extents: list[int]) -> None:
                super().withdraw(extents)
                for extent in extents:
                    self._mark(extent, [], 0)
                    block = self._blocks_of(extent)[0]
                    self._with_memory[block.block_id] = 1
                    self._pool.free_block_queue.append(block)

        self.assertTrue(self._fails(Leaky))

    def test_a_budget_that_forgets_to_evict_is_noticed(self) -> None:
        class Forgetful(BlockBudget):
            def _forget(self, block: object) -> None:
                pass

        self.assertTrue(self._fails(Forgetful))

    def _fails(self, budget: type[BlockBudget]) -> bool:
        for seed in range(20):
            try:
                _Order(seed, budget).run(self.OPERATIONS)
            except AssertionError:
                return True
        return False


class _Order:
    """One random order of operations on a pool, and the sets that say what must hold after each."""

    def __init__(self, seed: int, budget: type[BlockBudget]) -> None:
        self.random = random.Random(seed)
        self.pool = pool()
        self.granted = {0} | set(self.random.sample(range(1, EXTENTS), 2))
        self.budget = budget(self.pool, EXTENT_BLOCKS, EXTENTS, sorted(self.granted))
        self.holders: list[list[object]] = []
        self.contents: dict[int, bytes] = {}
        self.names = 0
        self.forgotten = 0

    def run(self, operations: int) -> None:
        choices = [self.take, self.release, self.release, self.hit, self.grant, self.withdraw, self.withdraw]
        for _ in range(operations):
            self.random.choice(choices)()
            self.check()

    def held(self) -> set[int]:
        return {block.block_id for holder in self.holders for block in holder}

    def usable(self) -> set[int]:
        ids = {extent * EXTENT_BLOCKS + offset for extent in self.granted for offset in range(EXTENT_BLOCKS)}
        return ids - {0}

    def take(self) -> None:
        free = len(self.usable() - self.held())
        if free:
            blocks = self.pool.get_new_blocks(self.random.randint(1, min(free, 6)))
            self.holders.append(blocks)
            for block in blocks:
                self.contents.pop(block.block_id, None)
                if self.random.random() < 0.7:
                    self.names += 1
                    self.contents[block.block_id] = cache(self.pool, block, self.names)

    def release(self) -> None:
        if self.holders:
            self.pool.free_blocks(self.holders.pop(self.random.randrange(len(self.holders))))

    def hit(self) -> None:
        if self.contents:
            content = self.random.choice(list(self.contents.values()))
            blocks = self.pool.get_cached_block(content, [0])
            assert blocks is not None, "content of a block with memory stays cached"
            self.pool.touch(blocks)
            self.holders.append(blocks)

    def grant(self) -> None:
        extent = self.random.randrange(EXTENTS)
        self.budget.grant([extent])
        self.granted.add(extent)

    def withdraw(self) -> None:
        extent = self.random.randrange(EXTENTS)
        blocks = set(range(extent * EXTENT_BLOCKS, (extent + 1) * EXTENT_BLOCKS))
        allowed = extent not in self.granted or (extent != 0 and not blocks & self.held())
        gone = {block: self.contents[block] for block in blocks & set(self.contents)}
        try:
            self.budget.withdraw([extent])
        except BudgetError:
            assert not allowed, f"extent {extent} is idle"
            return
        assert allowed, f"extent {extent} is in use"
        self.granted.discard(extent)
        self.forgotten += len(gone)
        for block, content in gone.items():
            del self.contents[block]
            assert self.pool.get_cached_block(content, [0]) is None, f"hit on block {block} without memory"

    def check(self) -> None:
        free = free_ids(self.pool)
        assert len(free) == len(set(free)) == self.pool.get_num_free_blocks()
        assert set(free) == self.usable() - self.held()
        assert self.pool.num_gpu_blocks == len(self.usable()) + 1
        assert self.budget.granted == self.granted
        idle = {e for e in self.granted - {0} if not {b // EXTENT_BLOCKS for b in self.held()} & {e}}
        assert set(self.budget.idle()) == idle


if __name__ == "__main__":
    unittest.main()
