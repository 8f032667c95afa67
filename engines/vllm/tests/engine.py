"""A real vLLM server and the scripted sidecar, as processes of a test."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
START_S = 600
COMMAND_S = 120


class Sidecar:
    """The scripted sidecar: commands go in, events come out."""

    def __init__(self, binary: Path, socket_path: Path, *options: str) -> None:
        command = [str(binary), str(socket_path), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._results: queue.Queue[dict[str, Any]] = queue.Queue()
        self.events: list[dict[str, Any]] = []
        self._came = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def do(self, command: str) -> Any:
        """Carries out a command and returns its result."""
        answer = self.try_to(command)
        assert answer["ok"], answer
        return answer.get("result")

    def try_to(self, command: str) -> dict[str, Any]:
        """Carries out a command that may be refused."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._results.get(timeout=COMMAND_S)

    def event(self, name: str, after: int = 0, limit_s: float = COMMAND_S, **fields: Any) -> dict[str, Any]:
        """Waits for an event of this name behind the first `after` ones."""

        def found() -> dict[str, Any] | None:
            return next(
                (e for e in self.events[after:] if e["event"] == name and fields.items() <= e.items()),
                None,
            )

        with self._came:
            assert self._came.wait_for(lambda: found() is not None, limit_s), f"no {name} in {self.events[after:]}"
            event = found()
        assert event is not None
        return event

    def stop(self) -> None:
        """Ends it; engines that are connected end with it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(COMMAND_S)

    def kill(self) -> None:
        """Kills it, as a crash would."""
        self._process.kill()
        self._process.wait(COMMAND_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "event" not in message:
                self._results.put(message)
                continue
            with self._came:
                self.events.append(message)
                self._came.notify_all()


class Engine:
    """A vLLM server on a port of loopback."""

    def __init__(self, python: str, model: str, folder: Path, log: str, **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = "--dtype float32 --enforce-eager --max-model-len 2048 --max-num-seqs 8 --enable-prompt-tokens-details"
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *options.split()]
        names = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CACHE_ROOT": str(folder / "cache"),
        }
        self.log = folder / log
        with self.log.open("w") as out:
            self._process = subprocess.Popen(
                command,
                env=os.environ | names | environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Waits until it serves."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise AssertionError(f"vLLM ended with {self._process.returncode}: {self.log.read_text()[-3000:]}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
                return
            time.sleep(0.25)
        raise AssertionError(f"vLLM does not serve: {self.log.read_text()[-3000:]}")

    def ended(self) -> int:
        """Waits until it ends."""
        return self._process.wait(COMMAND_S)

    def complete(self, prompt: Any, tokens: int = 48) -> tuple[list[int], int]:
        """Greedy tokens behind a prompt, and how many of the prompt's tokens came from the prefix cache."""
        body = {
            "model": "m",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = json.load(self.post("/v1/completions", body))
        details = answer["usage"].get("prompt_tokens_details") or {}
        return answer["choices"][0]["token_ids"], details.get("cached_tokens") or 0

    def post(self, path: str, body: Any = None) -> Any:
        """One request."""
        url = f"http://127.0.0.1:{self.port}{path}"
        data = json.dumps(body).encode() if body is not None else b""
        request = urllib.request.Request(url, data, {"content-type": "application/json"}, method="POST")
        return urllib.request.urlopen(request, timeout=START_S)

    def stop(self) -> None:
        """Ends the server and all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


def plugin_folder(folder: Path, entry_point: str) -> str:
    """A PYTHONPATH on which vLLM finds this package with an entry point, without an installation."""
    distribution = folder / "sluice_vllm-0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: sluice-vllm\nVersion: 0\n")
    (distribution / "entry_points.txt").write_text(f"[vllm.general_plugins]\nsluice = {entry_point}\n")
    return f"{PACKAGE}{os.pathsep}{folder}"
