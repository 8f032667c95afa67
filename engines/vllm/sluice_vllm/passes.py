"""Passes of the model and changes of mappings take turns in one worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sluice_vllm.link import WorkerLink


class Turns:
    """Gives a pass or a change its turn; a change that waits comes before the next pass.

    A plain lock is not fair: the thread that runs pass after pass takes it again before a waiting thread wakes.
    """

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._busy = False
        self._changes_waiting = 0

    @contextmanager
    def pass_turn(self) -> Iterator[None]:
        """Holds off changes; waits for those that wait already."""
        with self._state:
            while self._busy or self._changes_waiting:
                self._state.wait()
            self._busy = True
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def change_turn(self) -> Iterator[None]:
        """Holds off passes; waits for the one that runs."""
        with self._state:
            self._changes_waiting += 1
            while self._busy:
                self._state.wait()
            self._changes_waiting -= 1
            self._busy = True
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        with self._state:
            self._busy = False
            self._state.notify_all()


class Passes:
    """Counts passes on the control page and waits in them for the layers that move.

    `before_layer` and `after_layer` come from the two operators that vLLM has for prefetched layers.
    """

    def __init__(self, link: WorkerLink, turns: Turns) -> None:
        self._link = link
        self._turns = turns
        self._moving: frozenset[int] = frozenset()
        self._first_pass = 0
        self._number: int | None = None
        self._stall_ns = 0

    def set_moving(self, layers: list[int], first_pass: int) -> None:
        """From pass `first_pass` on exactly these layers are waited for. Comes while no pass runs."""
        assert self._number is None, "layers begin to move between passes"
        self._moving = frozenset(layers)
        self._first_pass = first_pass

    @contextmanager
    def one(self, tokens: int, sequences: int) -> Iterator[None]:
        """One pass over this many tokens of this many sequences."""
        with self._turns.pass_turn():
            begin = time.perf_counter_ns()
            self._stall_ns = 0
            self._number = number = self._link.begin_pass()
            try:
                yield
            finally:
                self._number = None
                took = time.perf_counter_ns() - begin
                self._link.end_pass(number, took, self._stall_ns, tokens, sequences)

    def before_layer(self, layer: int) -> None:
        """Waits for the weights of a layer that moves."""
        number = self._waits_in(layer)
        if number is not None:
            begin = time.perf_counter_ns()
            self._link.wait_ready(layer, number)
            self._stall_ns += time.perf_counter_ns() - begin

    def after_layer(self, layer: int) -> None:
        """Says that the weights of a layer that moves may be replaced."""
        number = self._waits_in(layer)
        if number is not None:
            self._link.publish_done(layer, number)

    def _waits_in(self, layer: int) -> int | None:
        """The number of this pass if it waits for the layer; warm-up runs are no passes."""
        if layer in self._moving and self._number is not None and self._number >= self._first_pass:
            return self._number
        return None
