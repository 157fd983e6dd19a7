"""Many requests at once, of every kind, among clients that misbehave: none is lost or mixed up."""

import json
import os
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from server import POSITIONS, needs_binary, serving, wait_for

pytestmark = needs_binary

COUNT = 2000 if os.environ.get("TERATRON_LONG_TESTS") else 200
WORDS = "The cat dog owl sees eats likes fish mice".split()


def some_request(number):
    """(endpoint, fields), different for each number."""
    chosen = random.Random(number)
    prompt = " ".join(chosen.choices(WORDS, k=chosen.randrange(1, 40))) + f" {number}"
    tokens = chosen.choice([1, 3, 8, 20])
    kind = chosen.choice(["api", "beam", "completion", "list", "stream", "chat", "chat stream", "bad"])
    options = chosen.choice([{"temperature": 0}, {"top_k": 5}, {"top_p": 0.7}, {"temperature": 0.5}])
    fields = {"prompt": prompt, "max_tokens": tokens, "seed": number, **options}
    if kind in ("api", "beam"):
        more = {"beam_width": 3} if kind == "beam" else {"random_seed": number, "top_k": 4, "logprobs": True}
        return kind, {"prompts": [prompt], "tokens_to_generate": tokens, **more}
    if kind == "list":
        fields |= {"prompt": [prompt, prompt + "!", "The"], "n": 2, "logprobs": 1}
    if kind.startswith("chat"):
        fields["messages"] = [{"role": "user", "content": fields.pop("prompt")}]
    if kind == "bad":
        fields["top_p"] = 7
    return kind, fields


def answer(server, number):
    kind, fields = some_request(number)
    if kind in ("api", "beam"):
        return server.api(**fields).json["text"]
    if kind == "bad":
        return server.completion(**fields).message
    if kind.endswith("stream"):
        path = "/v1/chat/completions" if kind.startswith("chat") else "/v1/completions"
        pieces = [event["choices"][0] for event in server.stream(path, **fields)]
        return "".join(piece["delta"].get("content", "") if "delta" in piece else piece["text"] for piece in pieces)
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    return [choice.get("text", choice.get("message")) for choice in server.ask("POST", path, fields).json["choices"]]


def misbehave(server, stop):
    """Half-open connections, garbage, streams that end after their first bytes."""
    chosen = random.Random(5)
    kept = []
    while not stop.wait(0.02):
        raw = socket.create_connection((server.host, server.port), timeout=20)
        body = json.dumps({"prompt": "The", "max_tokens": POSITIONS - 9, "stream": True, "ignore_eos": True})
        raw.sendall(chosen.choice([b"", b"GET / HT", b"\x16\x03\x01\x02\x00" * 9, b"PUT /api HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
                                   f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()]))
        kept.append(raw)
        if len(kept) > 20:
            kept.pop(0).close()
    for raw in kept:
        raw.close()


def test_mixed_requests_among_strangers(run):
    with serving(run, "--max-queued-requests", "5000") as server:
        alone = {number: answer(server, number) for number in range(min(COUNT, 200))}
        before = server.memory()
        stop = threading.Event()
        strangers = threading.Thread(target=misbehave, args=(server, stop))
        strangers.start()
        try:
            with ThreadPoolExecutor(COUNT) as pool:
                together = list(pool.map(lambda number: answer(server, number % len(alone)), range(COUNT)))
        finally:
            stop.set()
            strangers.join()
        wrong = [number for number, text in enumerate(together) if text != alone[number % len(alone)]]
        assert not wrong, f"{len(wrong)} of {COUNT}: {wrong[:5]} {together[wrong[0]]!r} {alone[wrong[0] % len(alone)]!r}"
        wait_for(server.is_idle, "an idle server")
        assert server.memory() - before < 300, "MiB more than before"


def test_huge_requests(run):
    with serving(run, "--max-body-bytes", "1000000") as server:
        before, used = server.memory(), []
        for _ in range(24):
            assert server.completion(prompt="x" * 900_000).status == 400
            assert server.completion(prompt="x" * 1_100_000).status == 413
            assert server.completion(prompt=["a"] * 5000).status == 400
            assert server.api(prompts=["The cat " * 10_000]).json.startswith("Length of prompt")
            with pytest.raises(OSError), socket.create_connection((server.host, server.port), timeout=30) as raw:
                for _ in range(100_000):  # headers without an end
                    raw.sendall(b"X-A: " + b"y" * 4000 + b"\r\n")
            used.append(server.memory() - before)
        assert used[-1] < 150, used
        assert used[-1] - used[8] < 50, f"what is used grows with the number of requests: {used}"


def test_huge_requests_at_once(run):
    with serving(run) as server:
        before = server.memory()
        with ThreadPoolExecutor(24) as pool:
            replies = list(pool.map(lambda _: server.completion(prompt="x" * 1_000_000), range(24)))
        assert {reply.status for reply in replies} == {400}
        more = server.memory("VmHWM") - before
        assert more < 350, f"{more} MiB: 24 texts at 35 MiB each were tokenized at once"
