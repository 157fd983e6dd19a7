#!/usr/bin/env python3
"""Encoding speed of GPT-2's tokenizer on one core: teratron, Hugging Face tokenizers and tiktoken (where installed).

Every tokenizer gets each whole text as one document, starting with empty caches (a new process for teratron, a new
object for the others); the best of a few rounds counts, reading and printing excluded. The ids must agree.

    python bench/tokenizer_speed.py --binary build/release/teratron --data ../shared/data
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import time

TEXTS = ["tinyshakespeare.txt", "wikitext2-test.txt", "wikitext2-valid.txt"]


def timed(encode, text):
    begin = time.perf_counter()
    ids = encode(text)
    return time.perf_counter() - begin, ids


def teratron(binary, data):
    flags = ["tokenizer", "encode", "--document", "--timing", "--tokenizer-type", "GPT2BPETokenizer", "--vocab-file",
             str(data / "gpt2-vocab.json"), "--merge-file", str(data / "gpt2-merges.txt")]

    def run(text):
        done = subprocess.run([binary, *flags], input=text.encode(), capture_output=True, check=True)
        seconds = re.search(r"encoded in ([0-9.]+) s", done.stderr.decode())
        return float(seconds[1]), [int(x) for x in done.stdout.split()]
    return run


def hugging_face(data):
    from tokenizers import Tokenizer, models, pre_tokenizers

    def run(text):
        tokenizer = Tokenizer(models.BPE.from_file(str(data / "gpt2-vocab.json"), str(data / "gpt2-merges.txt")))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        seconds, encoding = timed(tokenizer.encode, text)
        return seconds, encoding.ids
    return run


def tiktoken(data):
    import tiktoken as library

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(other)}
    vocab = json.loads((data / "gpt2-vocab.json").read_text(encoding="utf-8"))
    ranks = {bytes(byte_of[c] for c in token): i for token, i in vocab.items() if token != "<|endoftext|>"}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

    def run(text):
        encoding = library.Encoding("gpt2-local", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        return timed(encoding.encode_ordinary, text)
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/teratron")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("../shared/data"))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    runners = {"teratron": teratron(args.binary, args.data)}
    for name, make in (("tokenizers", hugging_face), ("tiktoken", tiktoken)):
        try:
            runners[name] = make(args.data)
        except ImportError:
            print(f"{name}: not installed, left out")
    print("text".ljust(24) + "".join(f"{name:>20}" for name in runners) + "   (MB/s)")
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


if __name__ == "__main__":
    main()
