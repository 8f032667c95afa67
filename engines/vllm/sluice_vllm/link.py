"""The links to the sidecar: one of the worker, one of the scheduler, over the library of `sluice-vllm-link`.

Messages are dictionaries with a field `type`. The classes here load the library by ctypes, which releases the
interpreter's lock in every call. Tests replace them by classes with the same methods.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice_vllm import LINK_VARIABLE, __version__
from sluice_vllm.errors import SluiceRefused

LIBRARY_VARIABLE = "SLUICE_LINK_LIBRARY"
"""Environment variable with another path of the library than the one in this package."""

CONNECT_TIMEOUT_MS = 60_000
ABI_VERSION = 1
EXIT_STATUS = 86
"""Exit status of an engine whose sidecar is gone or whose link failed."""

OK, TIMEOUT, CLOSED, REFUSED, OVERTAKEN = 0, 1, 2, 3, 4
TORN = -4


class LinkFailed(RuntimeError):
    """The link cannot be used any more: this process must end."""


def build_name() -> str:
    """The name of this build of the plugin, which the sidecar logs."""
    return f"sluice-vllm {__version__}"


def leave_on_failure(function: Callable[..., None]) -> Callable[..., None]:
    """Ends the process if a thread of the plugin fails: an engine without it would use memory that is gone."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> None:
        try:
            function(*args)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(EXIT_STATUS)

    return wrapped


class Library:
    """The loaded library and its error text."""

    _loaded: Library | None = None

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)
        self.c.sluice_last_error.restype = ctypes.c_char_p
        self.c.sluice_abi_version.restype = ctypes.c_uint32
        version = self.c.sluice_abi_version()
        if version != ABI_VERSION:
            raise SluiceRefused(f"{path} has ABI version {version}, this package needs {ABI_VERSION}")

    @classmethod
    def get(cls) -> Library:
        """Loads the library once per process."""
        if cls._loaded is None:
            packaged = Path(__file__).with_name("libsluice_vllm_link.so")
            cls._loaded = Library(os.environ.get(LIBRARY_VARIABLE) or str(packaged))
        return cls._loaded

    def error(self) -> str:
        """The text of the last failure in this thread."""
        return (self.c.sluice_last_error() or b"").decode(errors="replace")

    def check(self, code: int, what: str) -> None:
        """Raises `LinkFailed` for every code but success."""
        if code != OK:
            raise LinkFailed(f"{what}: code {code}: {self.error()}")


class Link:
    """One connection to the sidecar."""

    _connect_function = ""

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle
        self.setup: dict[str, Any] = self._text("sluice_setup", self._library.c.sluice_setup)
        """The sidecar's answer to the hello."""
        library.check(library.c.sluice_exit_with_sidecar(handle, ctypes.c_int32(EXIT_STATUS)), "exit with the sidecar")

    @classmethod
    def connect(cls, hello: dict[str, Any]) -> Any:
        """Connects to the socket that `SLUICE_LINK` names. Raises `SluiceRefused` with the sidecar's reason."""
        library = Library.get()
        path = os.environ[LINK_VARIABLE].encode()
        text = json.dumps(hello).encode()
        handle = ctypes.c_void_p()
        code = getattr(library.c, cls._connect_function)(
            path,
            ctypes.c_size_t(len(path)),
            text,
            ctypes.c_size_t(len(text)),
            ctypes.c_int64(CONNECT_TIMEOUT_MS),
            ctypes.byref(handle),
        )
        if code == REFUSED:
            raise SluiceRefused(f"the sidecar refused this engine: {library.error()}")
        library.check(code, f"connect to {os.environ[LINK_VARIABLE]}")
        return cls(library, handle)

    def receive(self) -> dict[str, Any] | None:
        """Waits for the next message. Raises `LinkFailed` when the sidecar is gone."""
        return self._text("receive", lambda *a: self._library.c.sluice_receive(a[0], ctypes.c_int64(-1), *a[1:]))

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message of this end."""
        text = json.dumps(message).encode()
        code = self._library.c.sluice_send(self._handle, text, ctypes.c_size_t(len(text)))
        self._library.check(code, f"send {message['type']}")

    def _text(self, what: str, function: Callable[..., int]) -> Any:
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        code = function(self._handle, ctypes.byref(text), ctypes.byref(size))
        if code == TIMEOUT:
            return None
        self._library.check(code, what)
        assert text.value is not None, "the library gives a text with success"
        return json.loads(ctypes.string_at(text.value, size.value))


class SchedulerLink(Link):
    """The link of the engine core's scheduler."""

    _connect_function = "sluice_scheduler_connect"


class WorkerLink(Link):
    """The link of the worker: orders for mappings, and the control page by which layers are waited for."""

    _connect_function = "sluice_worker_connect"

    def reserve(self) -> None:
        """Reserves the addresses of all layers and of the KV; nothing is behind them yet."""
        self._library.check(self._library.c.sluice_reserve(self._handle), "reserve addresses")

    def layer_range(self, layer: int) -> tuple[int, int]:
        """Address and bytes of a layer's range."""
        return self._range(self._library.c.sluice_layer_range, ctypes.c_uint32(layer))

    def kv_range(self) -> tuple[int, int]:
        """Address and bytes of the KV range."""
        return self._range(self._library.c.sluice_kv_range)

    def apply(self, order: int) -> bool:
        """Carries out a remap or zero order and replies; False if it was refused and nothing changed."""
        code = self._library.c.sluice_apply(self._handle, ctypes.c_uint64(order))
        if code != REFUSED:
            self._library.check(code, f"apply order {order}")
        return bool(code == OK)

    def begin_pass(self) -> int:
        """Counts a pass and returns its number."""
        number = ctypes.c_uint64()
        self._library.check(self._library.c.sluice_begin_pass(self._handle, ctypes.byref(number)), "begin a pass")
        return number.value

    def end_pass(self, number: int, ns: int, stall_ns: int, tokens: int, sequences: int) -> None:
        """Publishes the end of a pass with its times."""
        code = self._library.c.sluice_end_pass(
            self._handle,
            ctypes.c_uint64(number),
            ctypes.c_uint64(ns),
            ctypes.c_uint64(stall_ns),
            ctypes.c_uint32(tokens),
            ctypes.c_uint32(sequences),
        )
        self._library.check(code, "end a pass")

    def wait_ready(self, layer: int, number: int) -> None:
        """Waits until the weights of a moving layer are there for this pass."""
        code = self._library.c.sluice_wait_ready(
            self._handle, ctypes.c_uint32(layer), ctypes.c_uint64(number), ctypes.c_int64(-1)
        )
        self._library.check(code, f"wait for layer {layer} in pass {number}")

    def publish_done(self, layer: int, number: int) -> None:
        """Says that this pass does not read the weights of this layer any more."""
        code = self._library.c.sluice_publish_done(self._handle, ctypes.c_uint32(layer), ctypes.c_uint64(number))
        self._library.check(code, f"publish done of layer {layer}")

    def _range(self, function: Callable[..., int], *arguments: Any) -> tuple[int, int]:
        address, size = ctypes.c_uint64(), ctypes.c_uint64()
        code = function(self._handle, *arguments, ctypes.byref(address), ctypes.byref(size))
        self._library.check(code, "ask for a range")
        return address.value, size.value
