"""An engine without torch: it goes through the protocol up to a step, says so, and waits to be killed.

Arguments: `worker` or `scheduler`, and the step at which it stops.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from sluice_vllm.link import EXIT_STATUS, LinkFailed, SchedulerLink, WorkerLink

BLOCK_BYTES, BLOCKS = 65536, 8


class Peer:
    """Says each step on its standard output and stops at one."""

    def __init__(self, last: str) -> None:
        self.last = last

    def step(self, name: str) -> None:
        print(name, flush=True)
        if name == self.last:
            sys.stdin.read()

    def worker(self) -> None:
        link = WorkerLink.connect({"build": "test", "engine": "vllm 0.32.0", "rank": 0, "ranks": 1})
        self.step("connected")
        link.reserve()
        self.step("reserved")
        mapped = 0
        while mapped < sum(link.setup["layer_chunks"]):
            mapped += self.apply(link)["maps"]
        self.step("mapped")
        address, size = link.layer_range(1)
        ctypes.memset(address, 7, size)
        link.send({"type": "loaded", "layer_bytes": [link.layer_range(layer)[1] for layer in range(2)]})
        self.step("loaded")
        assert link.receive() == {"type": "captured"}
        self.step("captured")
        link.send(
            {
                "type": "kv_layout",
                "layers": 2,
                "blocks": BLOCKS,
                "block_bytes": BLOCK_BYTES,
                "layer_stride_bytes": BLOCKS * BLOCK_BYTES,
                "block_stride_bytes": BLOCK_BYTES,
                "block_tokens": 16,
            }
        )
        self.step("layout")
        accepted = link.receive()
        assert accepted is not None and accepted["type"] == "kv_accepted", accepted
        self.step("accepted")
        while self.apply(link)["type"] != "zero":
            pass
        number = link.begin_pass()
        self.step("pass")
        link.end_pass(number, 1000, 0, 1, 1)
        while True:
            message = self.apply(link)
            if message["type"] == "moving":
                self.step("moving")
                link.send({"type": "applied", "id": message["id"]})

    def apply(self, link: WorkerLink) -> dict[str, Any]:
        message = link.receive()
        assert message is not None
        if message["type"] in ("remap", "zero"):
            self.step(message["type"])
            assert link.apply(message["id"])
        return message

    def scheduler(self) -> None:
        hello = {"build": "test", "engine": "vllm 0.32.0", "blocks": BLOCKS, "block_tokens": 16, "max_model_len": 64}
        link = SchedulerLink.connect(hello)
        self.step("connected")
        link.send({"type": "demand", "wanted_blocks": 1, "waiting": 1, "running": 0, "blocked": [["a", 3]]})
        while True:
            order = link.receive()
            assert order is not None
            self.step(order["type"])
            if order["type"] == "hold":
                idle = link.setup["granted"][1:]
                held = {"type": "held", "id": order["id"], "idle": idle, "wanted_blocks": 0, "waiting": 0, "running": 0}
                link.send(held)
            elif order["type"] == "retire":
                link.send({"type": "retired", "id": order["id"], "extents": [1], "preempted": 0})


if __name__ == "__main__":
    try:
        getattr(Peer(sys.argv[2]), sys.argv[1])()
    except LinkFailed:
        # A thread of the library ends the process too; either may come first.
        sys.exit(EXIT_STATUS)
