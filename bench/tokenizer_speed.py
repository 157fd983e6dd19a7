#!/usr/bin/env python3
"""Speed of the GPT-2 tokenizer: teratron, Hugging Face tokenizers and tiktoken (if installed), in one run.

Encoding on one core: each text is one document, encoded with empty caches (a new process for teratron, a new object for
the others); prints the best of a few rounds in CPU seconds, without input and output. The ids must agree. Preprocessing:
the texts as JSON lines to .bin/.idx, `teratron preprocess` with 1 and 2 workers against a Python loop of json, tokenizer and
numpy. MB of text; CPU seconds of all threads.

    python bench/tokenizer_speed.py --binary build/release/teratron/cli/teratron --data ../shared/data
"""
import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import tempfile
import time

TEXTS = ["tinyshakespeare.txt", "wikitext2-test.txt", "wikitext2-valid.txt"]


def timed(encode, text):
    """CPU seconds, which do not depend on other load."""
    begin = time.process_time()
    ids = encode(text)
    return time.process_time() - begin, ids


def cold(make):
    """A runner that creates a new tokenizer for each text."""
    return lambda text: timed(make(), text)


def teratron(binary, data):
    flags = ["tokenizer", "encode", "--document", "--timing", "--tokenizer-type", "GPT2BPETokenizer", "--vocab-file",
             str(data / "gpt2-vocab.json"), "--merge-file", str(data / "gpt2-merges.txt")]

    def run(text):
        done = subprocess.run([binary, *flags], input=text.encode(), capture_output=True, check=True)
        seconds = re.search(r"([0-9.]+) s of CPU time", done.stderr.decode())
        return float(seconds[1]), [int(x) for x in done.stdout.split()]
    return run


def hugging_face(data):
    from tokenizers import Tokenizer, models, pre_tokenizers

    def make():
        tokenizer = Tokenizer(models.BPE.from_file(str(data / "gpt2-vocab.json"), str(data / "gpt2-merges.txt")))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return lambda text: tokenizer.encode(text).ids
    return make


def tiktoken(data):
    import tiktoken as library

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(other)}
    vocab = json.loads((data / "gpt2-vocab.json").read_text(encoding="utf-8"))
    ranks = {bytes(byte_of[c] for c in token): i for token, i in vocab.items() if token != "<|endoftext|>"}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

    def make():
        return library.Encoding("gpt2-local", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode_ordinary
    return make


def json_lines(data, folder, megabytes):
    """The paragraphs of the texts, repeated, each after a number, as one file."""
    paragraphs = [p for file in TEXTS for p in (data / file).read_text(encoding="utf-8").split("\n\n") if p.strip()]
    path, size, number = folder / "texts.jsonl", 0, 0
    with open(path, "w", encoding="utf-8") as out:
        while size < megabytes * 1e6:
            for paragraph in paragraphs:
                text = f"{number} {paragraph}"
                number += 1
                size += len(text.encode())
                out.write(json.dumps({"text": text}) + "\n")
    return path, size


def preprocess(binary, data, folder, peers, megabytes):
    path, size = json_lines(data, folder, megabytes)
    flags = ["preprocess", "--input", str(path), "--output-prefix", str(folder / "out"), "--append-eod", "--tokenizer-type",
             "GPT2BPETokenizer", "--vocab-file", str(data / "gpt2-vocab.json"), "--merge-file", str(data / "gpt2-merges.txt"),
             "--log-interval", "100000000"]

    def report(name, seconds, cpu):
        print(f"preprocess {size / 1e6:.0f} MB, {name}: {size / seconds / 1e6:.1f} MB/s, {size / cpu / 1e6:.1f} MB per CPU s",
              flush=True)

    for workers in (1, 2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        subprocess.run([binary, *flags, "--workers", str(workers)], check=True, capture_output=True)
        seconds = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        report(f"teratron, {workers} workers", seconds,
               after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    import numpy
    for name, encode in peers.items():
        begin, cpu = time.perf_counter(), time.process_time()
        with open(path, encoding="utf-8") as lines, open(folder / "peer.bin", "wb") as out:
            for line in lines:
                out.write(numpy.array(encode(json.loads(line)["text"]) + [50256], dtype=numpy.uint16).tobytes())
        report(f"Python and {name}", time.perf_counter() - begin, time.process_time() - cpu)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/teratron/cli/teratron")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("../shared/data"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--preprocess-mb", type=int, default=100, help="0: skip preprocessing")
    args = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    runners, peers = {"teratron": teratron(args.binary, args.data)}, {}
    for name, peer in (("tokenizers", hugging_face), ("tiktoken", tiktoken)):
        try:
            make = peer(args.data)
            runners[name], peers[name] = cold(make), make()
        except ImportError:
            print(f"{name}: not installed, skipped")
    print("text".ljust(24) + "".join(f"{name:>20}" for name in runners) + "   (MB per CPU second)")
    for file in TEXTS:
        raw = (args.data / file).read_bytes()
        text = raw.decode()
        row, reference = file.ljust(24), None
        for run in runners.values():
            results = [run(text) for _ in range(args.rounds)]
            reference = reference or results[0][1]
            same = "" if results[0][1] == reference else " DIFFERS"
            row += f"{len(raw) / min(seconds for seconds, _ in results) / 1e6:.1f}{same}".rjust(20)
        print(row, flush=True)
    if args.preprocess_mb:
        with tempfile.TemporaryDirectory() as folder:
            preprocess(args.binary, args.data, pathlib.Path(folder), peers, args.preprocess_mb)


if __name__ == "__main__":
    main()
