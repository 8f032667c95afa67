"""Real vLLM with SmolLM2 in float32 over the scripted sidecar: no change of memory changes a token.

Needs `SLUICE_VLLM_PYTHON` (a Python with vLLM), `SLUICE_VLLM_MODEL` (the folder of SmolLM2-135M) and
`SLUICE_BIN_DIR` (with `libsluice_vllm_link.so` and `scripted_sidecar`, or `examples/scripted_sidecar`).
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any

from tests.engine import Engine, Sidecar, plugin_folder
from tests.faults import DROP_WAITS_VARIABLE

LAYERS, MOVING = 30, "5 12 19 26"
BLOCK_TOKENS = 128
FIRST_EXTENTS = 24
SEED = int(os.environ.get("SLUICE_TEST_SEED", "1"))
ORDERS = 100

PROMPTS = [
    "Once upon a time there was a fox",
    "The capital of France is",
    "In the year 1905 Albert Einstein",
    "def fibonacci(n):",
]
SHORT, LONG = 32, 140
LARGE = [100 + position % 900 for position in range(9 * BLOCK_TOKENS)]
"""A prompt of nine blocks."""


def needs() -> tuple[str, str, Path, Path]:
    """What the tests need, or a skip that names what is missing."""
    python, model, binaries = (
        os.environ.get(name) for name in ("SLUICE_VLLM_PYTHON", "SLUICE_VLLM_MODEL", "SLUICE_BIN_DIR")
    )
    if not (python and model and binaries):
        raise unittest.SkipTest("skipped: real vLLM needs SLUICE_VLLM_PYTHON, SLUICE_VLLM_MODEL and SLUICE_BIN_DIR")
    folder = Path(binaries)
    library = folder / "libsluice_vllm_link.so"
    sidecars = [path for path in (folder / "scripted_sidecar", folder / "examples/scripted_sidecar") if path.exists()]
    if not (sidecars and library.exists()):
        raise unittest.SkipTest(f"skipped: {folder} lacks libsluice_vllm_link.so or scripted_sidecar")
    return python, model, library, sidecars[0]


class RealVllm(unittest.TestCase):
    """The tests run in the order of their names, on one engine; the last ones kill it."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.python, cls.model, cls.library, cls.binary = needs()
        temporary = tempfile.TemporaryDirectory(prefix="sluice-real-vllm-")
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        cls.reference = cls.vanilla()
        cls.drop_waits = cls.folder / "drop-waits"
        cls.path = plugin_folder(cls.folder, "tests.faults:register")
        socket = cls.folder / "engine.sock"
        # 64 KiB chunks: 217 hold a layer's 14.2 MB, and three a block of one layer.
        options = ["--layer-chunks", f"217x{LAYERS}", "--capacity", "9800", "--extents", str(FIRST_EXTENTS)]
        cls.sidecar = Sidecar(cls.binary, socket, *options)
        cls.addClassCleanup(cls.sidecar.stop)
        cls.engine = cls.start(socket, "owned.log")
        cls.sidecar.do("poison on")

    @classmethod
    def vanilla(cls) -> dict[Any, list[int]]:
        """Tokens of vLLM without the plugin."""
        engine = Engine(cls.python, cls.model, cls.folder, "vanilla.log")
        try:
            engine.wait()
            tokens = {prompt: engine.complete(prompt, LONG)[0] for prompt in PROMPTS}
            tokens["large"] = engine.complete(LARGE, SHORT)[0]
            return tokens
        finally:
            engine.stop()

    @classmethod
    def start(cls, socket: Path, log: str) -> Engine:
        environment = {
            "PYTHONPATH": cls.path,
            "SLUICE_LINK": str(socket),
            "SLUICE_LINK_LIBRARY": str(cls.library),
            DROP_WAITS_VARIABLE: str(cls.drop_waits),
        }
        engine = Engine(cls.python, cls.model, cls.folder, log, **environment)
        cls.addClassCleanup(engine.stop)
        engine.wait()
        return engine

    def answers(self, tokens: int = SHORT) -> list[list[int]]:
        self.engine.post("/reset_prefix_cache")
        return [self.engine.complete(prompt, tokens)[0] for prompt in PROMPTS]

    def expected(self, tokens: int = SHORT) -> list[list[int]]:
        return [self.reference[prompt][:tokens] for prompt in PROMPTS]

    def test_1_resident_layers_answer_as_vllm_without_the_plugin(self) -> None:
        self.assertEqual(self.answers(), self.expected())
        loaded = self.sidecar.event("loaded")
        self.assertEqual(len(loaded["layer_bytes"]), LAYERS)
        self.assertGreaterEqual(min(loaded["layer_bytes"]), 14_160_384)
        self.assertEqual(self.sidecar.do("verify"), {"layers": LAYERS, "differing": []})

    def test_2_four_layers_stream_through_one_slot(self) -> None:
        self.sidecar.do(f"remap {MOVING}")
        self.assertEqual(self.answers(), self.expected())
        copies = self.sidecar.do("status")["copies"]
        self.assertGreater(copies, 4 * 4 * SHORT * 0.9)
        self.sidecar.do("revert")
        self.assertEqual(self.answers(), self.expected())

    def test_3_a_dropped_wait_changes_tokens(self) -> None:
        self.sidecar.do("copy_delay_us 3000")
        self.sidecar.do(f"remap {MOVING}")
        self.drop_waits.touch()
        try:
            self.assertNotEqual(self.answers(), self.expected())
        finally:
            self.drop_waits.unlink()
            self.sidecar.do("copy_delay_us 0")
            self.sidecar.do("revert")
        self.assertEqual(self.answers(), self.expected(), "nothing wrong is left in KV")

    def test_4_random_orders_under_four_requests_change_no_token(self) -> None:
        seen: list[tuple[str, list[int]]] = []
        ended = threading.Event()

        def ask(prompt: str) -> None:
            while not ended.is_set():
                seen.append((prompt, self.engine.complete(prompt, LONG)[0]))

        threads = [threading.Thread(target=ask, args=(prompt,), daemon=True) for prompt in PROMPTS]
        for thread in threads:
            thread.start()
        orders = _RandomOrders(self.sidecar, SEED)
        try:
            for _ in range(ORDERS):
                orders.one()
                orders.let_a_pass_run()
        finally:
            ended.set()
            orders.end()
            for thread in threads:
                thread.join(600)
        self.assertGreaterEqual(len(seen), 4)
        for prompt, tokens in seen:
            self.assertEqual(tokens, self.reference[prompt], f"seed {SEED}: {prompt}")
        print(
            f"{ORDERS} orders (seed {SEED}): {orders.counts}, {len(seen)} answers, {orders.preempted} preemptions, "
            f"a pass after {orders.passes} of them"
        )
        self.assertGreater(orders.preempted, 0)
        self.assertGreater(orders.passes, ORDERS // 2)

    def test_5_a_prompt_above_the_budget_is_reported_and_small_ones_go_on(self) -> None:
        before = len(self.sidecar.events)
        retired = len(self.sidecar.do(f"retire {FIRST_EXTENTS - 8}")["extents"])
        answer: list[list[int]] = []
        large = threading.Thread(target=lambda: answer.append(self.engine.complete(LARGE, SHORT)[0]), daemon=True)
        large.start()
        demand = self.sidecar.event("demand", before)["demand"]
        while not demand["blocked"]:
            before = len(self.sidecar.events)
            demand = self.sidecar.event("demand", before)["demand"]
        self.assertEqual([blocks for _, blocks in demand["blocked"]], [9])
        self.assertGreater(demand["wanted_blocks"], 0)
        self.assertEqual(self.answers(), self.expected())
        self.assertEqual(answer, [])
        self.sidecar.do(f"grow {retired}")
        large.join(120)
        self.assertEqual(answer, [self.reference["large"]])

    def test_6_no_prefix_hit_on_a_retired_block(self) -> None:
        self.engine.post("/reset_prefix_cache")
        self.engine.complete(LARGE, 1)
        tokens, cached = self.engine.complete(LARGE, SHORT)
        self.assertEqual((tokens, cached), (self.reference["large"], 8 * BLOCK_TOKENS))
        retired = len(self.sidecar.do(f"retire {FIRST_EXTENTS - 1}")["extents"])
        self.assertEqual(retired, FIRST_EXTENTS - 1)
        self.sidecar.do(f"grow {retired}")
        tokens, cached = self.engine.complete(LARGE, SHORT)
        self.assertEqual((tokens, cached), (self.reference["large"], 0))

    def test_7_a_killed_worker_is_seen(self) -> None:
        self.killed("worker", "worker_gone")

    def test_8_a_killed_core_is_seen_and_the_weights_stay_for_the_next_engine(self) -> None:
        type(self).engine = self.start(self.folder / "engine.sock", "again.log")
        self.assertEqual(self.answers(), self.expected())
        self.killed("scheduler", "scheduler_gone")

    def killed(self, who: str, event: str) -> None:
        before = len(self.sidecar.events)
        hello = [e for e in self.sidecar.events if e["event"] == who][-1]["hello"]
        os.kill(hello["pid"], signal.SIGKILL)
        self.assertTrue(self.sidecar.event(event, before)["exited"])
        # The other process of the engine ends too: its KV is worth nothing.
        for other in ("worker_gone", "scheduler_gone"):
            self.assertTrue(self.sidecar.event(other, before)["exited"])
        self.engine.stop()


class _RandomOrders:
    """Random changes of memory, each possible where it comes."""

    def __init__(self, sidecar: Sidecar, seed: int) -> None:
        self.sidecar = sidecar
        self.random = random.Random(seed)
        self.extents = FIRST_EXTENTS
        self.moving = False
        self.preempted = 0
        self.passes = 0
        self.counts = dict.fromkeys(("grow", "shrink", "remap", "revert"), 0)

    def one(self) -> None:
        kind = self.random.choice(["grow", "shrink", "revert" if self.moving else "remap"])
        self.counts[kind] += 1
        getattr(self, kind)()

    def let_a_pass_run(self) -> None:
        """Asks until a pass has ended since; gives up where no request fits the memory that is left."""
        begun = self.sidecar.do("status")["passes_begun"]
        for _ in range(2000):
            if self.sidecar.do("status")["passes_ended"] > begun:
                self.passes += 1
                return

    def grow(self) -> None:
        self._grow(min(self.random.randint(1, 8), FIRST_EXTENTS + 4 - self.extents))

    def shrink(self) -> None:
        retired = self.sidecar.do(f"retire {self.random.randint(1, 12)}")
        self.extents -= len(retired["extents"])
        self.preempted += retired["preempted"]

    def remap(self) -> None:
        layers = sorted(self.random.sample(range(LAYERS), self.random.randint(2, 4)))
        self.sidecar.do("remap " + " ".join(map(str, layers)))
        self.moving = True

    def revert(self) -> None:
        self.sidecar.do("revert")
        self.moving = False

    def end(self) -> None:
        if self.moving:
            self.revert()
        self._grow(FIRST_EXTENTS - self.extents)

    def _grow(self, extents: int) -> None:
        if extents > 0:
            self.extents += len(self.sidecar.do(f"grow {extents}"))


if __name__ == "__main__":
    unittest.main()
