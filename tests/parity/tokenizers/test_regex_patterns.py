"""Patterns of tokenizer.json against the package `tokenizers`, whose engine is Oniguruma: where each word begins and ends.

Environment: tokenizer_program.py.
"""
import random
import subprocess

import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, models, normalizers, pre_tokenizers  # noqa: E402

from tokenizer_program import BINARY, assert_same, encode_lines, offsets_of_lines, random_strings  # noqa: E402

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
PUBLISHED = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": LLAMA3,
    "qwen2": LLAMA3.replace("{1,3}", ""),
    "cl100k": LLAMA3.replace(r"\p{N}]?\p{L}", r"\p{N}]?+\p{L}").replace("]+[\\r\\n]*", "]++[\\r\\n]*"),
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "deepseek_llm": r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "deepseek_words": r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕ]+",
    "deepseek_han": "[一-龥぀-ゟ゠-ヿ]+",
    "deepseek_v3": (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    "deepseek_end": r"\s+$",
    "gpt4o": (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
              r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
              r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    "kimi": (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
             r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    "digits": r"\d{1,3}(?=(?:\d{3})*\b)",
}
WRITTEN = [
    r"\h+", r"\H+", r"\v", r"[\v\f]+", r"[[:punct:]]+", r"\p{Punct}+", r"[[:^alpha:]]+", r"[[:upper:][:digit:]]+", r"[[:word:]]+",
    r"[[:space:]&&[^ ]]+", r"[a-z&&[^aeiou]]+", r"[^a-y&&[^b]]+", r"[a[bc[d-f]]]+", r"[^[^a-z]]+", r"[]a]+", r"[^]a]+",
    r"[a-c-e]+", r"[-a]+", r"[a-]+", r"[&a]+", r"[+--]+", r"^\w", r"\w$", r".+", r"(?m).+", r"(?m:a.)b|.", r"\A\w+", r"\w+\z", r"\w+\Z",
    r"\p{^L}+", r"\P{L}+", r"\P{^L}+", r"\p{Greek}+", r"\p{Cyrillic}+|\p{Hangul}+|\p{Arabic}+", r"\p{InCJK_Unified_Ideographs}+",
    r"\p{Uppercase_Letter}\p{Lowercase_Letter}*", r"\p{Alphabetic}+", r"\p{Emoji}+", r"\p{Extended_Pictographic}", r"\p{LC}+",
    r"(?i:ab)+", r"(?i)k+", r"(?i:[a-z])+", r"(?i:[^k])+", r"(?i:\p{Lu})+", r"(?i:[^\p{Lu}])+", r"(?i)σ+", r"a|(?i)b|c", r"a(?i)b|c", r"(a(?i)b|c)d", r"(?i:a(?-i)b)",
    r"a{2}?b", r"a{1,2}+b", r"a{,2}b", r"a{2,}?b", r"a**b", r"a+?b", r"a*+b", r"a?+b", r"x{,}", r"a{b", r"(?:ab){2}", r"(?>a+)b",
    r"(?<name>a)b", r"(?'n'a)b", r"(a)(b)", r"(?#comment)ab", r"(?x) a b # comment", r"\x41\x{e9}\u00e9?", r"\R", r"\N+", r"\O",
    r"\b", r"\B", r"\bword", r"(?=[A-Z])", r"(?<=a|bc)b", r"(?<!\S)\w", r"(?!a)\w", r"x*", r"\s|", r"\-\/\'", r"é|ß?e", r"\e|\a",
    r"[\x{300}-\x{36f}]+", r"\d+|\D", r"\W+", r"[\w.]+", r"[\s\S]", r"[^\S\n]+", r"|a", r"(|a)b", r"()", r"[\b]",
]
REFUSED = {r"(a)\1": r"\1", r"a\Kb": r"\K", r"\X": r"\X", r"\p{Script=Han}": "Script=Han", r"(?i:ss)": "'ss'", r"(?i:ß)": "'ss'", r"(?i:[\p{Lu}])": "'ss'",
           r"(?~ab)": "(?~", r"\G": r"\G", r"[[:foo:]]": "[:foo:]", r"[\w-x]": "range", r"(?(1)a|b)": "(?(", r"a{3,2}": "interval",
           r"\Qa\E": r"\Q", r"\k<a>": r"\k", r"(?W:\w)": "(?W", r"\y": r"\y", r"\u{e9}": "escape", "(a": "(", "a)": ")", r"\p{Nope}": "Nope", "*": "quantifier"}
BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]


def splitter(pattern, behavior="isolated", invert=False):
    """Each word becomes one unknown token."""
    made = tokenizers.Tokenizer(models.BPE({"<unk>": 0}, [], unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior, invert)
    return made


def lines():
    rng = random.Random(1)
    alphabet = ["a", "b", "c", "d", "e", "f", "k", "x", "A", "B", "K", "word", " ", "  ", "\t", "\v", "\f", "\r", "'", "'s", "'RE", "1", "23",
                "456", "-", "+", "$", "`", "~", "^", "|", "&", "(", ")", "[", "]", ".", ",", "!", "_", "/", "{b", "é", "ß", "ſ", "\u212a", "σ",
                "ς", "Σ", "Ж", "ب", "٣", "中", "文", "。", "，", "、", "‘", "！", "ー", "か", "한", "ǅ", "Ⅷ", "½", "\u0301", "\u200d", "😀", "\u0085",
                "\u2028", "\u00a0", "\u180e", "\u0870", "\U0001df00", "\ua7d3", "\U00011f04", "\u1c89", "\x07", "\x1b", "\x08"]
    short = ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 10))) for _ in range(500)]
    return short + list(random_strings(200, seed=6))


LINES = lines()


def check(made, folder):
    (folder / "tokenizer.json").write_text(made.to_str(pretty=False), encoding="utf-8")
    flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(folder)]
    assert_same(LINES, offsets_of_lines(flags, LINES), [made.encode(line).offsets for line in LINES])


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_patterns(name, tmp_path):
    check(splitter(PUBLISHED[name]), tmp_path)
    check(splitter(PUBLISHED[name], "removed", invert=True), tmp_path)


def test_written_patterns(tmp_path):
    for i, pattern in enumerate(WRITTEN):
        check(splitter(pattern, BEHAVIORS[i % len(BEHAVIORS)], invert=i % 2 == 1), tmp_path)


@pytest.mark.parametrize("behavior", BEHAVIORS)
def test_empty_matches_divide_words(behavior, tmp_path):
    for pattern in [r"(?=[A-Z])", r"x*", r"\b", r"(?<=a)"]:
        check(splitter(pattern, behavior), tmp_path)


def test_patterns_are_replaced_alike(tmp_path):
    for pattern in [r"x*", r"\s+", r"[[:punct:]]", r"(?=b)"]:
        made = tokenizers.Tokenizer(models.BPE({**{chr(c): c - 32 for c in range(32, 127)}, "<unk>": 95}, [], unk_token="<unk>"))
        made.normalizer = normalizers.Replace(Regex(pattern), "-")
        (tmp_path / "tokenizer.json").write_text(made.to_str(pretty=False), encoding="utf-8")
        flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tmp_path)]
        assert_same(LINES, encode_lines(flags, LINES), [made.encode(line).ids for line in LINES])


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_not_known_is_refused_by_name(pattern, tmp_path):
    text = splitter("PATTERN").to_str(pretty=False).replace("PATTERN", pattern.replace("\\", "\\\\"))
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    done = subprocess.run([BINARY, "tokenizer", "encode", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
                           str(tmp_path)], input=b"a\n", capture_output=True, check=False)
    assert done.returncode == 3 and REFUSED[pattern] in done.stderr.decode(), done.stderr.decode()
