"""What the parity tests of the tokenizers share: the program, the texts, and random Unicode.

TERATRON_BINARY names the program, TERATRON_TEST_DATA the folder with vocabularies and texts. Without TERATRON_LONG_TESTS
(./run test --long) two texts are enough, cut to TEXT_BYTES, and 2000 random strings stand for 100000
(TERATRON_FUZZ_STRINGS).
"""
import os
import pathlib
import random
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = os.environ.get("TERATRON_BINARY", str(ROOT / "build/release/teratron/cli/teratron"))
DATA = pathlib.Path(os.environ.get("TERATRON_TEST_DATA", ROOT.parent / "shared/data"))
LONG = "TERATRON_LONG_TESTS" in os.environ
STRINGS = int(os.environ.get("TERATRON_FUZZ_STRINGS", "100000" if LONG else "2000"))
TEXT_BYTES = 100_000
TEXTS = ["tinyshakespeare.txt", "wikitext2-test.txt", "wikitext2-valid.txt", "lambada_test.jsonl"][:4 if LONG else 2]

if not (DATA / "gpt2-vocab.json").exists():
    pytest.skip(f"no vocabularies in {DATA}: set TERATRON_TEST_DATA", allow_module_level=True)
if not os.path.exists(BINARY):
    pytest.skip(f"no program at {BINARY}: set TERATRON_BINARY", allow_module_level=True)

long_test = pytest.mark.skipif(not LONG, reason="long: ./run test --long")


def read(file, whole=LONG):
    """A text, or its beginning, as bytes of whole characters."""
    text = (DATA / file).read_bytes()
    return text if whole else text[:TEXT_BYTES].decode(errors="ignore").encode()


def random_strings(count, seed=20):
    rng = random.Random(seed)
    fixed = ["'s", "'S", "'ſ", "'ll", "'Ll", "'re", " ", "  ", "\t", "\r", "\u00a0", "\u2003", "\u3000", "\u0085",
             "\u180e", "\u200b", "\u200d", "\ufeff", "<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "WORD",
             "left", "right", "<a>", "<b>", "Größe", "GRÖSSE", "[MASK]", "[CLS]", "##ing", "\U0001f468\u200d\U0001f469",
             "❤\ufe0f", "\U0001f1e9\U0001f1ea", "½", "Ⅷ", "٣", "中文", "한국어", "ﬁ", "İ", "Σ", "ΑΣ", "ς", "_", "-", "...",
             "\u0301", "\u0316", "\u0345", "\u1100\u1161\u11a8", "e\u0301", "1", "23", "4567", "0x1F", "hello", " world"]
    ranges = [(0x20, 0x7e)] * 4 + [(1, 0x2ff), (0x300, 0x36f), (0x370, 0x5ff), (0x600, 0x6ff), (0x900, 0x0fff),
              (0x1000, 0x1fff), (0x2000, 0x2fff), (0x3000, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3),
              (0xe000, 0xffff), (0x10000, 0x1ffff), (0x20000, 0x32000), (0xe0000, 0x10ffff), (1, 0x10ffff)]
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(0, 12)):
            if rng.random() < 0.3:
                parts.append(rng.choice(fixed))
                continue
            low, high = rng.choice(ranges)
            code = rng.randint(low, high)
            if code != 10 and not 0xd800 <= code < 0xe000:
                parts.append(chr(code) * rng.choice([1, 1, 1, 2, 5]))
        yield "".join(parts)


def run(command, flags, text):
    done = subprocess.run([BINARY, "tokenizer", command, *flags], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def encode_lines(flags, lines):
    out = run("encode", flags, "".join(line + "\n" for line in lines).encode())
    return [[int(x) for x in line.split()] for line in out.decode().split("\n")[:-1]]


def offsets_of_lines(flags, lines):
    """(begin, end) of each token, in characters."""
    out = run("encode", [*flags, "--offsets"], "".join(line + "\n" for line in lines).encode()).decode()
    return [[tuple(map(int, token.split(":")[1].split("-"))) for token in line.split()] for line in out.split("\n")[:-1]]


def encode_document(flags, text):
    return [int(x) for x in run("encode", [*flags, "--document"], text).split()]


def assert_same(lines, ours, theirs):
    assert len(ours) == len(theirs) == len(lines)
    bad = [(line, a, b) for line, a, b in zip(lines, ours, theirs) if a != b]
    assert not bad, f"{len(bad)} of {len(lines)} differ, first: {bad[0]!r}"
