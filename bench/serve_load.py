#!/usr/bin/env python3
"""Loads a server: clients that stream answers side by side, and the time to the first token beside some of them.

    teratron bench serve --shape llama3-8b --batch 64 &
    python bench/serve_load.py --port PORT --clients 64 --prompt-tokens 128 --new-tokens 256

Prints the tokens per second between the moment when every client has its first token and the moment when the first is
done, as `teratron bench generate` counts them, and with half of the clients streaming the times to the first token of further
requests. Standard library only.
"""
import argparse
import asyncio
import json
import random
import statistics
import time


async def stream(args, tokens, times):
    """One answer; the time of each of its events."""
    body = json.dumps({"prompt": [random.randrange(args.vocabulary) for _ in range(args.prompt_tokens)], "max_tokens": tokens,
                       "temperature": 0, "stream": True, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection(args.host, args.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    status = await reader.readline()
    assert b" 200 " in status, status + await reader.read(2000)
    done = False
    while not done:
        data = await reader.read(1 << 16)
        assert data, "the stream broke"
        times += [time.perf_counter()] * data.count(b"data: {")
        done = b"data: [DONE]" in data
    writer.close()
    assert len(times) == tokens, f"{len(times)} events of {tokens} tokens"


async def throughput(args):
    all_times = [[] for _ in range(args.clients)]
    start = time.perf_counter()
    await asyncio.gather(*(stream(args, args.new_tokens, times) for times in all_times))
    first, end = max(times[0] for times in all_times), min(times[-1] for times in all_times)
    tokens = sum(first < t <= end for times in all_times for t in times)
    return tokens / (end - first), max(times[0] for times in all_times) - start


async def first_tokens(args):
    """Times to the first token of single requests while half of the clients stream."""
    background = [asyncio.create_task(stream(args, args.background_tokens, [])) for _ in range(args.clients // 2)]
    await asyncio.sleep(args.settle_seconds)
    seconds = []
    for _ in range(args.probes):
        times, start = [], time.perf_counter()
        await stream(args, 8, times)
        seconds.append(times[0] - start)
        await asyncio.sleep(random.uniform(0.0, 0.1))
    assert not any(task.done() for task in background), "the others ended early: raise --background-tokens"
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    return sorted(seconds)


async def main(args):
    await throughput(argparse.Namespace(**{**vars(args), "new_tokens": 16}))  # captures the graphs of these sizes
    rate, until_first = await throughput(args)
    result = {"clients": args.clients, "tokens_per_second": rate, "seconds_until_all_have_a_token": until_first}
    if args.probes:
        seconds = await first_tokens(args)
        result |= {"half_load_first_token_median": statistics.median(seconds), "half_load_first_token_worst": seconds[-1]}
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=50000)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--probes", type=int, default=20)
    parser.add_argument("--background-tokens", type=int, default=1500)
    parser.add_argument("--settle-seconds", type=float, default=2.0)
    asyncio.run(main(parser.parse_args()))
