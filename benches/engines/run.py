#!/usr/bin/env python3
"""Serves one model by Sluice, vLLM and llama.cpp in turn on the same cores, and compares what clients see."""

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import client
from servers import LlamaCpp, Sluice, Vllm

ROOT = Path(__file__).resolve().parents[2]
# Row: what it is, its unit, whether more is better.
ROWS = {
    "one_stream": ("one stream", "tokens/s", True),
    "many_streams": (f"{client.STREAMS} streams", "tokens/s", True),
    "first_token": (f"first token of {client.PROMPT_TOKENS}", "ms", False),
    "burst_p99": ("P99 between tokens in a burst", "ms", False),
    "burst_max": ("longest between tokens in a burst", "ms", False),
    "burst_first_token": ("last first token of the burst", "ms", False),
}


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder in Hugging Face layout, bf16")
    parser.add_argument("--binaries", default=ROOT / "target/release", help="folder of sluice (target/release)")
    parser.add_argument("--vllm", help="virtual environment with vLLM for CPU")
    parser.add_argument("--vllm-arg", action="append", default=[], help="another argument of `vllm serve`")
    parser.add_argument("--llama-server", help="llama.cpp's llama-server")
    parser.add_argument("--gguf", help="the model for llama.cpp, GGUF in bf16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="starts of each server, in turn (3)")
    parser.add_argument("--repetitions", type=int, default=3, help="measurements within a round (3)")
    parser.add_argument("--json", type=Path, help="file for machine, versions and all samples")
    return parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def one_round(server, repetitions, number, folder):
    """Samples of one start of a server. The first measurement only warms it."""
    port = server.start(folder)
    try:
        asyncio.run(client.measure(port, server.served(), f"warm {number}"))
        seeds = [f"{number}/{repetition}" for repetition in range(repetitions)]
        return [asyncio.run(client.measure(port, server.served(), seed)) for seed in seeds]
    finally:
        server.stop()


def summary(samples, row):
    values = [sample[row] for sample in samples]
    return statistics.median(values), min(values), max(values)


def table(samples):
    """A line for each row: median and range of each server, and how far ahead the first one is."""
    names = list(samples)
    first = names[0]
    head = ["row", *names, *(f"{first} / {name}" for name in names[1:])]
    lines = [head, ["---"] * len(head)]
    for row, (title, unit, more) in ROWS.items():
        found = {name: summary(samples[name], row) for name in names}
        cells = [f"{middle:.1f} ({low:.1f} to {high:.1f})" for middle, low, high in found.values()]
        ratios = [found[first][0] / found[name][0] for name in names[1:]]
        ahead = [ratio if more else 1 / ratio for ratio in ratios]
        lines.append([f"{title}, {unit}", *cells, *(f"{ratio:.2f}" for ratio in ahead)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(threads):
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    wanted = ["avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16"]
    return {"processor": names[0], "cores": os.cpu_count(), "threads": threads, "kernel": ".".join(platform.release().split(".")[:2]),
            "features": [flag for flag in wanted if flag in flags.split()]}


def commit():
    out = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return out.stdout.strip() or "unknown"


def main():
    # Servers are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by SIGTERM"))
    given = options()
    servers = [
        Sluice(given.model, given.threads, given.binaries),
        Vllm(given.model, given.threads, given.vllm, given.vllm_arg),
        LlamaCpp(given.model, given.threads, given.llama_server, given.gguf),
    ]
    skipped = {server.name: server.missing() for server in servers if server.missing()}
    for name, why in skipped.items():
        say(f"skipped {name}: {why}")
    servers = [server for server in servers if server.name not in skipped]
    if not servers or servers[0].name != "sluice":
        sys.exit("error: Sluice itself is missing; build it first (see README.md)")
    samples = {server.name: [] for server in servers}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            # Every other round the other way round: a machine that gets slower favours no server.
            for server in servers if number % 2 == 0 else reversed(servers):
                say(f"round {number + 1} of {given.rounds}: {server.name}")
                samples[server.name] += one_round(server, given.repetitions, number, folder)
                say("  " + ", ".join(f"{row} {value:.1f}" for row, value in samples[server.name][-1].items()))
    print(table(samples))
    if given.json:
        versions = {server.name: server.version() for server in servers}
        loads = {"prompt_tokens": client.PROMPT_TOKENS, "output_tokens": client.OUTPUT_TOKENS,
                 "streams": client.STREAMS, "burst_running": client.BURST_RUNNING,
                 "burst_prompts": client.BURST_PROMPTS}
        found = {"date": date.today().isoformat(), "commit": commit(), "machine": machine(given.threads),
                 "model": Path(given.model).name, "versions": versions, "skipped": skipped, "loads": loads,
                 "samples": samples}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
