"""One streamed completion over HTTP, and the loads that are made of them. The standard library only."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

OUTPUT_TOKENS = 64
PROMPT_TOKENS = 128
STREAMS = 16
# The burst: streams that decode when it comes, their tokens, and prompts that come at once.
BURST_RUNNING, BURST_RUNNING_TOKENS, BURST_PROMPTS = 4, 160, 8
# Tokens of each running stream before the burst.
BURST_AFTER = 16


@dataclass
class Answer:
    """When a completion was asked for and when each of its events came: seconds of one monotonic clock."""

    asked: float
    events: list = field(default_factory=list)
    tokens: int = 0

    @property
    def first(self):
        return self.events[0] - self.asked

    @property
    def end(self):
        return self.events[-1]

    def gaps(self, since=0.0):
        pairs = zip(self.events, self.events[1:])
        return [after - before for before, after in pairs if after >= since]


class Failed(Exception):
    """A server did not answer as asked."""


def prompt(seed, tokens=PROMPT_TOKENS):
    """Token ids that no other seed begins with, so that no cache of prefixes helps."""
    numbers = random.Random(seed)
    return [numbers.randrange(100, 40000) for _ in range(tokens)]


async def complete(port, model, ids, tokens, on_event=None):
    """Asks for `tokens` tokens after the prompt `ids`: greedy, streamed, past any end of text."""
    body = json.dumps({
        "model": model, "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n")
    answer = Answer(time.monotonic())
    writer.write(head.encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise Failed(f"{status.decode().strip()}: {(await reader.read(2000)).decode(errors='replace')}")
    # Chunk sizes and headers are lines that do not begin with `data: `.
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("usage"):
            answer.tokens = event["usage"]["completion_tokens"]
        if event.get("choices"):
            answer.events.append(time.monotonic())
            if on_event:
                on_event(answer)
    writer.close()
    if answer.tokens != tokens:
        raise Failed(f"{answer.tokens} tokens came instead of {tokens}")
    return answer


async def one_stream(port, model, seed):
    """Output tokens per second of one request, and milliseconds until its first token."""
    answer = await complete(port, model, prompt(seed), OUTPUT_TOKENS)
    return {"one_stream": OUTPUT_TOKENS / (answer.end - answer.asked), "first_token": 1e3 * answer.first}


async def many_streams(port, model, seed):
    """Output tokens per second of requests that come at once."""
    begun = time.monotonic()
    asks = [complete(port, model, prompt(f"{seed}/{n}"), OUTPUT_TOKENS) for n in range(STREAMS)]
    answers = await asyncio.gather(*asks)
    return {"many_streams": STREAMS * OUTPUT_TOKENS / (max(answer.end for answer in answers) - begun)}


async def burst(port, model, seed):
    """Milliseconds between tokens of running streams, from a burst of prompts to the end of those streams."""
    ready = asyncio.Event()
    running = {}

    def on_event(answer):
        running[id(answer)] = len(answer.events)
        if len(running) == BURST_RUNNING and min(running.values()) >= BURST_AFTER:
            ready.set()

    asks = [complete(port, model, prompt(f"{seed}/r{n}"), BURST_RUNNING_TOKENS, on_event)
            for n in range(BURST_RUNNING)]
    streams = asyncio.gather(*asks)
    await asyncio.wait([asyncio.ensure_future(ready.wait()), streams], return_when=asyncio.FIRST_COMPLETED)
    begun = time.monotonic()
    prompts = [complete(port, model, prompt(f"{seed}/p{n}"), OUTPUT_TOKENS) for n in range(BURST_PROMPTS)]
    came = await asyncio.gather(*prompts)
    gaps = sorted(gap for answer in await streams for gap in answer.gaps(begun))
    return {
        "burst_p99": 1e3 * gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))],
        "burst_max": 1e3 * gaps[-1],
        "burst_first_token": 1e3 * max(answer.first for answer in came),
    }


async def measure(port, model, seed):
    """All loads, one after the other."""
    values = {}
    for load in (one_stream, many_streams, burst):
        values |= await load(port, model, seed)
    return values
