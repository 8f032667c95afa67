"""The servers that are compared: how each is started, and why one is skipped."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

# A busy machine starts vLLM in minutes.
READY_SECONDS = 900


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def last_line(command):
    """The last line that a command prints; None where it fails or there is no such command."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except OSError:
        return None
    lines = (out.stdout or out.stderr).strip().splitlines()
    return lines[-1] if out.returncode == 0 and lines else None


class Server:
    """A server process that answers `/v1/completions` on a port of 127.0.0.1."""

    name = ""
    environment = {}

    def __init__(self, model, threads):
        self.model, self.threads = Path(model).resolve(), threads
        self.process = self.log = None

    def missing(self):
        """Why this server cannot run here; None where it can."""
        raise NotImplementedError

    def version(self):
        raise NotImplementedError

    def command(self, port):
        raise NotImplementedError

    def served(self):
        """The name by which requests ask for the model."""
        return self.model.name

    def start(self, folder):
        """Starts it and returns its port when it is ready."""
        port = free_port()
        self.log = Path(folder) / f"{self.name}.log"
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:self.threads]))
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                ["taskset", "-c", cores, *self.command(port)], stdout=log, stderr=log,
                env=os.environ | self.environment, start_new_session=True)
        end = time.monotonic() + READY_SECONDS
        while not self.answers(port):
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                end_of_log = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                sys.exit(f"error: {self.name} did not become ready; the end of its log:\n{end_of_log}")
            time.sleep(0.1)
        return port

    def answers(self, port):
        """Whether a completion of one token comes: lists of models come earlier."""
        body = json.dumps({"model": self.served(), "prompt": [100], "max_tokens": 1}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self):
        """Ends the process and everything that it started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Sluice(Server):
    """`sluice run`: a sidecar and its engine."""

    name = "sluice"

    def __init__(self, model, threads, binaries):
        super().__init__(model, threads)
        self.binary = Path(binaries).resolve() / "sluice"

    def missing(self):
        return None if self.binary.is_file() else f"{self.binary} does not exist"

    def version(self):
        return last_line([self.binary, "--version"])

    def command(self, port):
        return [str(self.binary), "run", str(self.model), "--port", str(port), "--threads", str(self.threads)]


class Vllm(Server):
    """vLLM for CPU, compiled as it comes, in bf16."""

    name = "vllm"

    def __init__(self, model, threads, python, arguments):
        super().__init__(model, threads)
        self.binary = Path(python) / "bin" / "vllm" if python else None
        self.arguments = arguments
        self.environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if python:
            self.environment["PATH"] = f"{self.binary.parent}:{os.environ['PATH']}"

    def missing(self):
        if not self.binary:
            return "no --vllm FOLDER (a virtual environment with vLLM for CPU)"
        return None if self.binary.is_file() else f"{self.binary} does not exist"

    def version(self):
        return last_line([self.binary, "--version"])

    def command(self, port):
        return [str(self.binary), "serve", str(self.model), "--served-model-name", self.served(), "--port",
                str(port), "--dtype", "bfloat16", "--max-model-len", "2048", *self.arguments]


class LlamaCpp(Server):
    """llama.cpp's own server, on a GGUF file of the same weights in bf16."""

    name = "llama.cpp"

    def __init__(self, model, threads, binary, gguf):
        super().__init__(model, threads)
        self.binary, self.gguf = binary and shutil.which(binary), gguf

    def missing(self):
        if not self.binary or not self.gguf:
            return "no --llama-server FILE and --gguf FILE"
        return None if Path(self.gguf).is_file() else f"{self.gguf} does not exist"

    def version(self):
        return last_line([self.binary, "--version"]) or "unknown"

    def command(self, port):
        return [self.binary, "-m", self.gguf, "--alias", self.served(), "--port", str(port), "-t",
                str(self.threads), "-tb", str(self.threads), "-np", "16", "-c", "8192", "--no-webui"]
