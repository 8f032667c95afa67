#!/usr/bin/env python3
"""Requests to a SmolLM2 that Sluice serves, and whether its answers are those of smollm2-golden.json.

smollm2_answers.py MODEL body|path|compare QUESTION KIND     KIND: chat, completion, chat-stream, completion-stream
smollm2_answers.py MODEL openai BASE_URL                     asks all questions through the `openai` client

`compare` reads the answer from stdin. Used by check-smollm2.sh.
"""

import json
import sys
from pathlib import Path

GOLDEN = json.loads((Path(__file__).parent / "smollm2-golden.json").read_text())["prompts"]
TOKENS = 32
EOS = 2


def byte_of_character():
    """GPT-2's alphabet: the printable bytes stand for themselves, the others for characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def pieces(model, ids):
    """The text of each token, as the API shows it."""
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    names = {id: piece for piece, id in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    alphabet = byte_of_character()
    as_bytes = {id: bytes(alphabet[c] for c in names[id]) for id in ids if id not in special}
    return [special[id] if id in special else as_bytes[id].decode("utf-8", "replace") for id in ids]


def options(kind):
    return {"max_tokens": TOKENS, "temperature": 0} | ({"stream": True} if kind.endswith("-stream") else {})


def body(question, kind):
    golden = GOLDEN[question]
    if kind.startswith("chat"):
        messages = [{"role": "user", "content": golden["question"]}]
        return {"messages": messages, "logprobs": True} | options(kind)
    return {"prompt": golden["prompt_ids"], "logprobs": 0} | options(kind)


def path(kind):
    return "/v1/chat/completions" if kind.startswith("chat") else "/v1/completions"


def chunks(text, kind):
    """The JSON objects of an answer: one, or one for each event."""
    if not kind.endswith("-stream"):
        return [json.loads(text)]
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events[-1] == "[DONE]", f"the stream is not complete: {events[-1:]}"
    return [json.loads(event) for event in events[:-1]]


def read(chunk):
    """Text, tokens and the reason of the end of one object."""
    assert "error" not in chunk, chunk
    choice = chunk["choices"][0]
    text = choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
    logprobs = choice.get("logprobs") or {}
    tokens = logprobs.get("tokens") or [token["token"] for token in logprobs.get("content") or []]
    return text, tokens, choice.get("finish_reason")


def compare(model, question, objects):
    golden = GOLDEN[question]
    read_all = [read(chunk) for chunk in objects]
    text = "".join(text for text, _, _ in read_all)
    tokens = [token for _, tokens, _ in read_all for token in tokens]
    reasons = [reason for _, _, reason in read_all if reason]
    assert text == golden["text"], f"{text!r} is not {golden['text']!r}"
    expected = pieces(model, golden["greedy_ids"])
    assert tokens == expected, f"{tokens} are not {expected}"
    assert reasons == ["stop" if golden["greedy_ids"][-1] == EOS else "length"], reasons
    for usage in (chunk["usage"] for chunk in objects if chunk.get("usage")):
        # The chat template made the same prompt of the question.
        counts = usage["prompt_tokens"], usage["completion_tokens"]
        assert counts == (len(golden["prompt_ids"]), len(golden["greedy_ids"])), usage


def ask_openai(model, base_url):
    import openai

    client = openai.OpenAI(base_url=base_url, api_key="none")
    name = client.models.list().data[0].id
    for question in range(len(GOLDEN)):
        for kind in ["chat", "chat-stream"]:
            answer = client.chat.completions.create(model=name, **body(question, kind))
            objects = answer if kind.endswith("-stream") else [answer]
            compare(model, question, [chunk.model_dump() for chunk in objects])


def main():
    model, task, *rest = Path(sys.argv[1]), *sys.argv[2:]
    if task == "openai":
        return ask_openai(model, *rest)
    question, kind = int(rest[0]), rest[1]
    if task == "body":
        print(json.dumps(body(question, kind)))
    elif task == "path":
        print(path(kind))
    elif task == "compare":
        compare(model, question, chunks(sys.stdin.read(), kind))
    else:
        sys.exit(f"unknown task {task}")


if __name__ == "__main__":
    main()
