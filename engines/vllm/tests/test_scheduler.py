"""vLLM's real schedulers under a block budget, held and resumed by a link in this process."""

from __future__ import annotations

import queue
import threading
import unittest
from collections import deque
from typing import Any

from tests.needs import needs_vllm

needs_vllm()

from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.engine import EngineCoreRequestType  # noqa: E402
from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

from sluice_vllm.patches import EngineStep, HasWork  # noqa: E402
from sluice_vllm.scheduler import SluiceAsyncScheduler, SluiceScheduler  # noqa: E402
from tests.fakes import FakeSchedulerLink  # noqa: E402
from tests.pools import prompt, request, scheduler, vllm_config  # noqa: E402

EXTENT_BLOCKS, EXTENTS = 4, 8
FIRST = [0, 1]
"""Extents at start: seven blocks that requests can hold."""


def budgeted(granted: list[int] = FIRST, config: Any = None, cls: type = SluiceScheduler) -> Any:
    link = FakeSchedulerLink(EXTENT_BLOCKS, EXTENTS, granted)
    return scheduler(cls, EXTENT_BLOCKS * EXTENTS + 1, config, sluice_link=link)


def answer(output: Any, token: int = 7) -> ModelRunnerOutput:
    """What a model would answer: one token for each request that has its prompt."""
    ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: index for index, name in enumerate(ids)},
        sampled_token_ids=[[token] for _ in ids],
    )


def step(under_test: Any) -> dict[str, int]:
    output = under_test.schedule()
    under_test.update_from_output(output, answer(output))
    return output.num_scheduled_tokens


def blocks(under_test: Any, name: str) -> list[int]:
    return under_test.kv_cache_manager.get_block_ids(name)[0]


class ABudgetedScheduler(unittest.TestCase):
    def test_a_request_above_the_budget_waits_and_smaller_ones_behind_it_go_on(self) -> None:
        under_test = budgeted()
        under_test.add_request(request("large", prompt(9, 1)))
        under_test.add_request(request("small", prompt(2, 2)))
        self.assertEqual(set(step(under_test)), {"small"})
        self.assertEqual([r.request_id for r in under_test.waiting], ["large"])
        demand = self.newest(under_test)
        self.assertEqual(demand["blocked"], [["large", 10]])
        # Seven blocks, of which the small request holds three.
        self.assertEqual((demand["wanted_blocks"], demand["waiting"], demand["running"]), (6, 1, 1))

    def test_vllm_itself_lets_a_request_above_the_pool_block_those_behind_it(self) -> None:
        plain = scheduler(Scheduler, 8)
        plain.add_request(request("large", prompt(9, 1)))
        plain.add_request(request("small", prompt(2, 2)))
        self.assertEqual(step(plain), {})

    def test_requests_above_the_budget_keep_their_order_and_run_when_memory_comes(self) -> None:
        under_test = budgeted()
        for name, size in (("a", 9), ("b", 8), ("c", 1)):
            under_test.add_request(request(name, prompt(size, size)))
        self.assertEqual(set(step(under_test)), {"c"})
        self.assertEqual([r.request_id for r in under_test.waiting], ["a", "b"])
        under_test.sluice_resume([2, 3, 4, 5], [])
        self.assertEqual(set(step(under_test)), {"a", "b", "c"})

    def test_an_engine_with_nothing_but_requests_above_the_budget_is_starved(self) -> None:
        under_test = budgeted()
        under_test.add_request(request("large", prompt(9, 1)))
        step(under_test)
        self.assertTrue(under_test.sluice_starved())
        under_test.add_request(request("small", prompt(1, 1)))
        self.assertFalse(under_test.sluice_starved())
        step(under_test)
        self.assertFalse(under_test.sluice_starved())
        under_test.finish_requests("small", RequestStatus.FINISHED_ABORTED)
        step(under_test)
        self.assertTrue(under_test.sluice_starved())
        under_test.sluice_resume([2, 3], [])
        self.assertFalse(under_test.sluice_starved())
        self.assertEqual(set(step(under_test)), {"large"})

    def test_a_request_that_outgrows_the_budget_is_asked_for_and_does_not_block_others(self) -> None:
        under_test = budgeted()
        under_test.add_request(request("grows", prompt(7, 1)[:111], max_tokens=40))
        for _ in range(3):
            step(under_test)
        self.assertEqual([r.request_id for r in under_test.waiting], ["grows"])
        under_test.add_request(request("small", prompt(1, 2)))
        self.assertEqual(set(step(under_test)), {"small"})
        self.assertEqual(self.newest(under_test)["blocked"], [["grows", 8]])

    def test_retiring_takes_idle_extents_first(self) -> None:
        under_test = budgeted([0, 1, 2])
        under_test.add_request(request("a", prompt(2, 1)))
        step(under_test)
        held = under_test.sluice_hold()
        self.assertEqual((held["idle"], held["running"], held["waiting"]), ([1, 2], 1, 0))
        self.assertEqual(under_test.sluice_retire(1), {"extents": [1], "preempted": 0})
        self.assertEqual(under_test.block_budget.granted, {0, 2})
        self.assertEqual(set(step(under_test)), {"a"})

    def test_retiring_preempts_the_fewest_that_vllm_preempts_first(self) -> None:
        under_test = budgeted([0, 1, 2, 3])
        # Blocks: a 1..3 of extent 0, b 4..7, c 8..9, d 10..15.
        for name, tokens in (("a", 40), ("b", 60), ("c", 30), ("d", 90)):
            under_test.add_request(request(name, prompt(6, ord(name))[:tokens]))
        step(under_test)
        self.assertEqual((blocks(under_test, "b"), blocks(under_test, "c")), ([4, 5, 6, 7], [8, 9]))
        self.assertEqual(under_test.sluice_retire(1), {"extents": [3], "preempted": 1})
        self.assertEqual([r.request_id for r in under_test.running], ["a", "b", "c"])
        self.assertEqual([r.request_id for r in under_test.waiting], ["d"])
        # b alone frees extent 1; c, which vLLM preempts first, frees extent 2.
        self.assertEqual(under_test.sluice_retire(1), {"extents": [2], "preempted": 1})
        self.assertEqual(under_test.sluice_retire(5), {"extents": [1], "preempted": 1})
        self.assertEqual([r.request_id for r in under_test.running], ["a"], "the oldest request stays")
        self.assertEqual([r.request_id for r in under_test.waiting], ["b", "c", "d"])
        self.assertEqual(under_test.sluice_retire(1), {"extents": [], "preempted": 0})

    def test_a_request_whose_preemption_frees_no_extent_is_spared(self) -> None:
        under_test = budgeted([0, 1, 2])
        # Blocks: a 1, x 2, b 3..6, c 7..10; then d has the block of x, which lies in extent 0.
        for name, tokens in (("a", 10), ("x", 10), ("b", 60), ("c", 60)):
            under_test.add_request(request(name, prompt(4, ord(name))[:tokens]))
        step(under_test)
        under_test.finish_requests("x", RequestStatus.FINISHED_ABORTED)
        under_test.add_request(request("d", prompt(1, 9)[:10]))
        step(under_test)
        self.assertEqual((blocks(under_test, "c"), blocks(under_test, "d")), ([7, 8, 9, 10], [2]))
        self.assertEqual(under_test.sluice_retire(1), {"extents": [2], "preempted": 1})
        self.assertEqual([r.request_id for r in under_test.running], ["a", "b", "d"])

    def test_preempted_requests_resume_with_the_same_blocks_counted_once(self) -> None:
        under_test = budgeted([0, 1, 2, 3])
        for name in "ab":
            under_test.add_request(request(name, prompt(4, ord(name))))
        step(under_test)
        self.assertEqual(under_test.sluice_retire(4)["preempted"], 1)
        self.assertEqual(under_test.reset_preempted_req_ids, {"b"})
        self.assertNotIn("b", under_test.prev_step_scheduled_req_ids)
        self.assertIn("a", under_test.prev_step_scheduled_req_ids)
        self.assertEqual(set(step(under_test)), {"a"})
        under_test.sluice_resume([1, 2], [])
        self.assertEqual(set(step(under_test)), {"a", "b"})

    def test_no_prefix_hit_on_a_retired_block(self) -> None:
        under_test = budgeted([0, 1, 2, 3])
        under_test.add_request(request("first", prompt(11, 5), max_tokens=1))
        step(under_test)
        step(under_test)
        hits = under_test.kv_cache_manager.get_computed_blocks(request("again", prompt(11, 5)))[1]
        self.assertEqual(hits, 11 * 16)
        retired = under_test.sluice_retire(3)["extents"]
        hit, tokens, _ = under_test.kv_cache_manager.get_computed_blocks(request("again", prompt(11, 5)))
        self.assertEqual(retired and tokens, 3 * 16, "what extent 0 holds may be hit")
        self.assertTrue(all(block < EXTENT_BLOCKS for block in hit.get_block_ids()[0]))

    def newest(self, under_test: Any) -> dict[str, Any]:
        """The demand that follows the last step: messages come from a thread, at most every 10 ms."""
        expected = (len(under_test.waiting), len(under_test.running))
        while True:
            demand = under_test._link.demands.get(timeout=20)
            if (demand["waiting"], demand["running"]) == expected and demand["blocked"]:
                return demand


class AnEngine(EngineCoreProc):
    """vLLM's busy loop over a scheduler and a model that answers one token; no process, no socket, no model."""

    def __init__(self, under_test: Any, batch_queue: int = 0) -> None:
        self.scheduler = under_test
        self.vllm_config = under_test.vllm_config
        self.input_queue: queue.Queue[Any] = queue.Queue()
        self.output_queue: queue.Queue[Any] = queue.Queue()
        self.aborts_queue: queue.Queue[Any] = queue.Queue()
        self.shutdown_state = EngineShutdownState.RUNNING
        self.engines_running = False
        self.publish_dp_lb_stats = False
        self.process_input_queue_block = True
        self._idle_state_callbacks: list[Any] = []
        self.steps: queue.Queue[dict[str, int]] = queue.Queue()
        self.batch_queue_size = batch_queue
        self.batch_queue = deque(maxlen=batch_queue) if batch_queue else None
        self.step_fn = self.one_step if batch_queue == 0 else self.one_step_of_many
        self.enable_fault_tolerance = False
        self.permits = threading.Semaphore(1_000_000)

    def post_step(self, model_executed: bool) -> None:
        pass

    def one_step(self) -> tuple[dict[int, Any], bool]:
        if not self.scheduler.has_requests():
            return {}, False
        output = self.scheduler.schedule()
        self.steps.put(output.num_scheduled_tokens)
        return self.scheduler.update_from_output(output, answer(output)), output.total_num_scheduled_tokens > 0

    def one_step_of_many(self) -> tuple[dict[int, Any] | None, bool]:
        """The order of `EngineCore.step_with_batch_queue`; each step that is scheduled needs a permit of the test."""
        if self.scheduler.has_requests():
            self.permits.acquire()
            output = self.scheduler.schedule()
            self.steps.put(output.num_scheduled_tokens)
            self.batch_queue.appendleft(output)
            if len(self.batch_queue) < self.batch_queue_size:
                return None, True
        elif not self.batch_queue:
            return None, False
        output = self.batch_queue.pop()
        return self.scheduler.update_from_output(output, answer(output)), True

    def utility_of_test(self) -> str:
        return "answered"


class AHeldEngine(unittest.TestCase):
    def setUp(self) -> None:
        for patch in (HasWork(), EngineStep()):
            original = patch._original()
            patch.apply()
            self.addCleanup(setattr, EngineCoreProc, patch.attribute.split(".")[1], original)

    def start(self, under_test: Any, batch_queue: int = 0) -> tuple[AnEngine, FakeSchedulerLink]:
        engine = AnEngine(under_test, batch_queue)
        ended = threading.Event()

        def loop() -> None:
            try:
                engine.run_busy_loop()
            except SystemExit:
                ended.set()

        threading.Thread(target=loop, daemon=True).start()

        def stop() -> None:
            engine.shutdown_state = EngineShutdownState.REQUESTED
            engine.input_queue.put((EngineCoreRequestType.WAKEUP, None))
            self.assertTrue(ended.wait(20), "the engine ends")

        self.addCleanup(stop)
        return engine, under_test._link

    def add(self, engine: AnEngine, new: Any) -> None:
        engine.input_queue.put((EngineCoreRequestType.ADD, (new, 0)))

    def held_after_some_steps(self, engine: AnEngine, link: FakeSchedulerLink) -> dict[str, Any]:
        """The order comes from a thread: the engine may begin steps before it sees it."""
        for _ in range(400):
            try:
                return link.sent.get(timeout=0.05)
            except queue.Empty:
                engine.permits.release(1)
        raise AssertionError("the engine is not held")

    def drain(self, engine: AnEngine) -> None:
        while not engine.steps.empty():
            engine.steps.get()

    def test_an_idle_engine_is_held_and_resumed(self) -> None:
        engine, link = self.start(budgeted())
        link.order(type="hold", id=3)
        held = link.answer()
        self.assertEqual(held, {"type": "held", "id": 3, "idle": [1], "wanted_blocks": 0, "waiting": 0, "running": 0})
        link.order(type="resume", id=4, granted=[2], withdrawn=[1])
        self.add(engine, request("a", prompt(1, 1), max_tokens=1))
        self.assertEqual(engine.steps.get(timeout=20), {"a": 17})
        self.assertEqual(engine.scheduler.block_budget.granted, {0, 2})

    def test_while_held_no_step_runs_and_requests_aborts_and_utilities_are_handled(self) -> None:
        engine, link = self.start(budgeted())
        link.order(type="hold", id=1)
        link.answer()
        self.add(engine, request("a", prompt(1, 1)))
        self.add(engine, request("b", prompt(1, 2)))
        engine.input_queue.put((EngineCoreRequestType.ABORT, ["a"]))
        engine.input_queue.put((EngineCoreRequestType.UTILITY, (0, 9, "utility_of_test", ())))
        client, output = engine.output_queue.get(timeout=20)
        self.assertEqual((client, output.utility_output.result.result), (0, "answered"))
        self.assertTrue(engine.steps.empty())
        self.assertEqual([r.request_id for r in engine.scheduler.waiting], ["b"])
        link.order(type="resume", id=2, granted=[], withdrawn=[])
        self.assertEqual(set(engine.steps.get(timeout=20)), {"b"})

    def test_steps_in_flight_end_before_the_engine_is_held(self) -> None:
        config = vllm_config()
        config.scheduler_config.async_scheduling = True
        everything = list(range(EXTENTS))
        engine, link = self.start(budgeted(everything, config, SluiceAsyncScheduler), batch_queue=2)
        engine.permits = threading.Semaphore(0)
        self.add(engine, request("a", prompt(1, 1), max_tokens=1000))
        for order in range(20):
            engine.permits.release(1 + order % 3)
            engine.steps.get(timeout=20)
            link.order(type="hold", id=order)
            held = self.held_after_some_steps(engine, link)
            running = engine.scheduler.requests["a"]
            self.assertEqual((held["running"], len(engine.batch_queue)), (1, 0))
            self.assertEqual((running.num_in_flight_tokens, running.num_output_placeholders), (0, 0))
            self.drain(engine)
            link.order(type="resume", id=100 + order, granted=[], withdrawn=[])
        self.assertEqual(engine.scheduler.requests["a"].num_preemptions, 0)
        engine.permits.release(1_000)

    def test_a_held_engine_retires_and_its_requests_go_on(self) -> None:
        engine, link = self.start(budgeted([0, 1, 2, 3]))
        for name in "ab":
            self.add(engine, request(name, prompt(3, ord(name)), max_tokens=300))
        engine.steps.get(timeout=20)
        link.order(type="hold", id=1)
        self.assertLessEqual(link.answer()["running"], 2)
        link.order(type="retire", id=2, extents=3)
        retired = link.answer()
        self.assertLessEqual(retired["preempted"], 1)
        link.order(type="resume", id=3, granted=[1, 2, 3], withdrawn=[])
        self.drain(engine)
        seen: set[str] = set()
        while seen != {"a", "b"}:
            seen |= set(engine.steps.get(timeout=20))

    def test_an_engine_that_is_starved_sleeps_until_memory_comes(self) -> None:
        engine, link = self.start(budgeted())
        self.add(engine, request("large", prompt(9, 1), max_tokens=1))
        self.assertEqual(engine.steps.get(timeout=20), {})
        link.order(type="hold", id=1)
        self.assertEqual(link.answer()["wanted_blocks"], 3)
        self.assertLess(engine.steps.qsize(), 3, "an engine that can do nothing does not spin")
        link.order(type="resume", id=2, granted=[2], withdrawn=[])
        while not engine.steps.get(timeout=20):
            pass

    def test_a_held_engine_shuts_down(self) -> None:
        engine, link = self.start(budgeted())
        self.add(engine, request("a", prompt(1, 1), max_tokens=500))
        engine.steps.get(timeout=20)
        link.order(type="hold", id=1)
        link.answer()


if __name__ == "__main__":
    unittest.main()
