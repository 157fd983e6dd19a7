"""Grapheme clusters as the normalizer `Precompiled` of `tokenizers` sees them, whatever Unicode version the machine's libraries
have: emoji, Hangul, conjuncts of Indic scripts, flags, marks, and characters of all code points.

Environment: tokenizer_program.py.
"""
import pathlib
import random
import sys

import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import decoders, models, normalizers  # noqa: E402

from tokenizer_program import assert_same, encode_lines  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools"))
from generate_grapheme_tables import charsmap  # noqa: E402

ACCENTS = ["\u0301", "\u0302", "\u05b4", "\u0651", "\ufe0f", "\u20e3", "\U0001f3fd", "\u200c"]
POOLS = {
    "marks": ["a", "é", "я", "א", "ا", *ACCENTS, "\u200d", "\u0903", "\u0600", "\r", "\t", "\u00ad", "\u2028", "\u200b"],
    "emoji": ["©", "®", "❤", "☺", "👩", "👨", "🏽", "🔥", "🧑", "🏳", "🏴", "\u200d", "\u200d", "\ufe0f", "\u0301", "\U000e0067", "\U000e007f", "a"],
    "hangul": ["\u1100", "\u115f", "\ua960", "\u1161", "\u11a7", "\ud7b0", "\u11a8", "\ud7fb", "가", "각", "\u0600", "\u0301", "a", "\U00016d63"],
    "devanagari": ["क", "ष", "त", "र", "\u094d", "\u094d", "\u093c", "\u093f", "\u0902", "\u200d", "\u200c", "\u0301", "\u0600", "a"],
    "indic": ["ক", "\u09cd", "ક", "\u0acd", "କ", "\u0b4d", "క", "\u0c4d", "ക", "\u0d4d", "க", "\u0bcd", "\u0d4e", "ක", "\u0dca", "က",
              "\u1039", "ក", "\u17d2", "\u1b44", "\u1b13", "\U00011133", "\U00011107", "\u0301", "\u200d", "\u0e33", "\u0eb3"],
    "flags": ["🇩", "🇪", "🇫", "🇷", "\u0301", "\u200d", "\u0600", "a"],
    "prepended": ["\u0600", "\u06dd", "\u070f", "\u0890", "\u08e2", "\U000110bd", "\U000111c2", "a", "\u0301", "क", "\u1100", "🇩", "©", "\r"],
}
WHOLE = ["👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "❤\ufe0f\u200d🔥", "👍🏽", "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
         "🇩🇪🇫🇷🇺", "क्षत्रिय", "ক্ষ", "ശ്രീ", "க்ஷ", "క్ష", "각\u1100\u1161\u11a8", "e\u0301\u0302", "©\u200d❤\u0301", "©\u0301\u200d❤\u0301",
         "क\u094d\u200dक\u0301", "\u0600\u1100\u1161", "\u0e01\u0e33", "ﷺ\u0651", "a\u200d\u0301"]


def keys():
    """Characters of at most 3 bytes, which a cluster of 5 can begin with, and marks that can begin none."""
    return sorted({c for pool in POOLS.values() for c in pool if len(c.encode()) < 4} - {"\r", "\t"})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    vocab = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    made = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    made.normalizer = normalizers.Precompiled(charsmap({key: f"{chr(65 + i % 26)}{i}," for i, key in enumerate(keys())}))
    made.decoder = decoders.ByteFallback()
    path = tmp_path_factory.mktemp("graphemes") / "tokenizer.json"
    made.save(str(path))
    return made, ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(path)]


def check(made, lines):
    reference, flags = made
    assert_same(lines, encode_lines(flags, lines), [line.ids for line in reference.encode_batch(lines)])


@pytest.mark.parametrize("name", POOLS)
def test_clusters(made, name):
    rng = random.Random(name)
    check(made, ["".join(rng.choices(POOLS[name], k=rng.randint(1, 9))) for _ in range(3000)] + WHOLE)


def test_clusters_of_all_code_points(made):
    """Each between characters that show whether it begins, goes on with or ends a cluster."""
    rng = random.Random(5)
    everything = [c for pool in POOLS.values() for c in pool]
    points = [c for c in range(0x30000) if not 0xD800 <= c < 0xE000 and c != 0xA] + list(range(0xE0000, 0xE1002))
    lines = ["".join(rng.choice(everything) + chr(c) + rng.choice(everything) + rng.choice(ACCENTS) for c in points[i:i + 16])
             for i in range(0, len(points), 16)]
    check(made, lines)


def test_the_tables_know_more_than_one_version_of_pcre(made):
    """Of Unicode 15 to 17, which PCRE2 10.42 lacks; a run must not depend on it."""
    check(made, ["a\U00010d69", "a\u1add", "a\u0897", "\u0600\U00016d63", "\u0b15\u0b4d\u0b15\u0301", "a\U00011f00\u0301"])
