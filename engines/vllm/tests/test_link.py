"""The links over the real library and the scripted sidecar, without torch: a kill at every step of the protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from tests.engine import PACKAGE, Sidecar

WORKER_STEPS = ("connected", "reserved", "remap", "mapped", "loaded", "captured", "zero", "pass")
"""Not `layout` and `accepted`: the scripted sidecar may lose count when a worker dies while it grants the first KV."""
SCHEDULER_STEPS = ("connected", "hold", "retire", "resume")
EXIT_STATUS = 86


def binaries() -> tuple[Path, Path]:
    """The library and the scripted sidecar, or a skip that says what is missing."""
    folder = Path(os.environ.get("SLUICE_BIN_DIR", ""))
    library = folder / "libsluice_vllm_link.so"
    for sidecar in (folder / "scripted_sidecar", folder / "examples/scripted_sidecar"):
        if os.environ.get("SLUICE_BIN_DIR") and sidecar.exists() and library.exists():
            return library, sidecar
    raise unittest.SkipTest("skipped: SLUICE_BIN_DIR names no folder with libsluice_vllm_link.so and scripted_sidecar")


class Peers(unittest.TestCase):
    def setUp(self) -> None:
        self.library, binary = binaries()
        folder = tempfile.TemporaryDirectory(prefix="sluice-link-")
        self.addCleanup(folder.cleanup)
        self.socket = Path(folder.name) / "s"
        options = ["--layer-chunks", "3x2", "--kv-chunks", "16", "--capacity", "64", "--extents", "3"]
        self.sidecar = Sidecar(binary, self.socket, *options)
        self.addCleanup(self.sidecar.stop)
        self.sidecar.event("listening")

    def peer(self, kind: str, last: str) -> subprocess.Popen[str]:
        """An engine's process; the caller waits for its step."""
        environment = os.environ | {
            "SLUICE_LINK": str(self.socket),
            "SLUICE_LINK_LIBRARY": str(self.library),
            "PYTHONPATH": str(PACKAGE),
        }
        peer = subprocess.Popen(
            [sys.executable, "-m", "tests.peer", kind, last],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.end, peer)
        return peer

    def end(self, peer: subprocess.Popen[str]) -> None:
        peer.kill()
        peer.wait(20)
        for stream in (peer.stdin, peer.stdout):
            assert stream is not None
            stream.close()

    def until(self, peer: subprocess.Popen[str], step: str) -> None:
        assert peer.stdout is not None
        for line in peer.stdout:
            if line.strip() == step:
                return
        raise AssertionError(f"the peer ended before {step}: {peer.wait(20)}")

    def test_a_worker_killed_at_any_step_gives_all_chunks_but_its_layers_back(self) -> None:
        for step in WORKER_STEPS:
            with self.subTest(step=step):
                before = len(self.sidecar.events)
                worker = self.peer("worker", step)
                self.until(worker, step)
                worker.kill()
                self.assertTrue(self.sidecar.event("worker_gone", before)["exited"])
                self.assertEqual(self.sidecar.do("status")["free_chunks"], 64 - 6)
        worker = self.peer("worker", "never")
        self.until(worker, "pass")

    def test_a_scheduler_killed_at_any_step_is_seen_and_the_next_one_starts(self) -> None:
        worker = self.peer("worker", "never")
        self.until(worker, "pass")
        for step in SCHEDULER_STEPS:
            with self.subTest(step=step):
                before = len(self.sidecar.events)
                scheduler = self.peer("scheduler", step)
                self.until(scheduler, "connected")
                self.sidecar.event("scheduler_started", before)
                for command in {"hold": ("hold",), "retire": ("hold", "retire 1"), "resume": ("hold", "resume")}.get(
                    step, ()
                ):
                    if command.startswith(step):
                        # The sidecar waits for an answer that does not come until the link ends.
                        scheduler_killer = _Killer(self, scheduler, step)
                        self.sidecar.try_to(command)
                        scheduler_killer.join()
                    else:
                        self.sidecar.do(command)
                scheduler.kill()
                self.assertTrue(self.sidecar.event("scheduler_gone", before)["exited"])

    def test_engines_end_with_their_sidecar(self) -> None:
        worker = self.peer("worker", "never")
        self.until(worker, "pass")
        scheduler = self.peer("scheduler", "never")
        self.until(scheduler, "connected")
        self.sidecar.event("demand")
        self.sidecar.kill()
        self.assertEqual((worker.wait(20), scheduler.wait(20)), (EXIT_STATUS, EXIT_STATUS))

    def test_a_refusal_has_the_sidecars_text(self) -> None:
        self.sidecar.do("refuse_next no room for this engine")
        worker = subprocess.run(
            [sys.executable, "-m", "tests.peer", "worker", "never"],
            env=os.environ
            | {"SLUICE_LINK": str(self.socket), "SLUICE_LINK_LIBRARY": str(self.library), "PYTHONPATH": str(PACKAGE)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(worker.returncode, 1)
        self.assertIn("SluiceRefused: the sidecar refused this engine", worker.stderr)
        self.assertIn("no room for this engine", worker.stderr)


class _Killer:
    """Kills a peer when it has come to a step, from a thread."""

    def __init__(self, test: Peers, peer: subprocess.Popen[str], step: str) -> None:
        def kill() -> None:
            test.until(peer, step)
            peer.kill()

        self._thread = threading.Thread(target=kill, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(20)


if __name__ == "__main__":
    unittest.main()
