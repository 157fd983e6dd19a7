#!/usr/bin/env python3
"""Conversations of about --tokens tokens with a byte-level tokenizer (vocab.json, merges.txt), to time finetuning.

bench/conversations.py FOLDER; teratron bench --shape llama3-8b-12l --sft --data-path FOLDER/chats.jsonl
--tokenizer-type GPT2BPETokenizer --vocab-file FOLDER/vocab.json --merge-file FOLDER/merges.txt
--make-vocab-size-divisible-by 128256 --chat-template chatml
"""
import argparse
import json
import pathlib
import random


def byte_characters():
    """The characters that GPT-2's vocabulary has for the bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + i) for i in range(len(hidden))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=1000, help="of a conversation, on average; from half to one and a half")
    parser.add_argument("--count", type=int, default=20000)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {token: i for i, token in enumerate([*byte_characters(), "<|endoftext|>"])}
    (args.folder / "vocab.json").write_text(json.dumps(vocabulary))
    (args.folder / "merges.txt").write_text("#version: 0.2\n")
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(5000)]
    with open(args.folder / "chats.jsonl", "w") as out:
        for _ in range(args.count):
            length = max(generator.randint(args.tokens // 2, 3 * args.tokens // 2) - 80, 2)
            text = " ".join(generator.choices(words, k=length // 6))
            half = len(text) // 3
            messages = [{"role": "user", "content": text[:half]}, {"role": "assistant", "content": text[half:]}]
            out.write(json.dumps({"messages": messages}) + "\n")


if __name__ == "__main__":
    main()
