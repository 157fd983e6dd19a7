#!/usr/bin/env python3
"""Writes teratron/tokenizer/unicode/grapheme_tables.inc.

Where Hugging Face `tokenizers` ends grapheme clusters, whatever Unicode version it carries: the library is asked about every
code point. Its normalizer `Precompiled` shows them: it looks a cluster of less than 6 bytes up as a whole and replaces it by
what the shortest key at its beginning becomes, and each character of a longer one.

    python tools/generate_grapheme_tables.py [> teratron/tokenizer/unicode/grapheme_tables.inc]
"""
import struct
import sys

import tokenizers
from generate_unicode_tables import CODE_POINTS, emit
from tokenizers import normalizers

# The order of unicode::Break in graphemes.cpp.
BREAKS = ["other", "control", "extend", "joiner", "spacing_mark", "prepend", "regional", "l", "v", "t", "lv", "lvt"]
PICTOGRAPH, CONSONANT, LINKER, CONJUNCT_EXTEND = 16, 32, 64, 128

ACUTE, JOINER, HEART, VIRAMA, KA, ARABIC = "\u0301", "\u200d", "\u2764", "\u094d", "\u0915", "\u0600"
KIYEOK, A, KIYEOK_END = "\u1100", "\u1161", "\u11a8"


def charsmap(rules):
    """SentencePiece's compiled rules: a double array in which each node has 256 units."""
    nodes, leaves, replacements = [{}], {}, b""
    for key, replacement in sorted(rules.items()):
        node = 0
        for byte in key.encode():
            if byte not in nodes[node]:
                nodes.append({})
                nodes[node][byte] = len(nodes) - 1
            node = nodes[node][byte]
        leaves[node] = len(replacements)
        replacements += replacement.encode() + b"\0"
    units = [0] * (256 * (len(nodes) + 1))
    base = [256 * (node + 1) for node in range(len(nodes))]
    units[0] = base[0] << 10
    for node, children in enumerate(nodes):
        for byte, child in children.items():
            place = base[node] ^ byte
            units[place] = (place ^ base[child]) << 10 | (child in leaves) << 8 | byte
        if node in leaves:
            units[base[node]] = 1 << 31 | leaves[node]
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + replacements


def ask(text_of, rules, is_found):
    """The code points whose text, normalized by the rules, is one that `is_found` takes."""
    normalizer, found = normalizers.Precompiled(charsmap(rules)), set()
    asked = [c for c in CODE_POINTS if c not in (0xA, 0xD)]
    for begin in range(0, len(asked), 1 << 8):
        chunk = asked[begin:begin + (1 << 8)]
        lines = normalizer.normalize_str("\n".join(text_of(chr(c)) for c in chunk)).split("\n")
        assert len(lines) == len(chunk)
        found.update(c for c, line in zip(chunk, lines) if is_found(line))
    return found


def joined(before, after):
    """Of which `before ch after KA` or `before ch after HEART`, with an accent behind it, is one cluster."""
    last = after[-1]
    return ask(lambda ch: before + ch + after + ACUTE, {last: "Y"}, lambda line: line.endswith("Y" + ACUTE))


def behind(first):
    """Of which first ch is one cluster."""
    return ask(lambda ch: first + ch, {first[0]: "P"}, lambda line: len(line) == 1 or line[1] in first[1:])


def classes():
    extends = behind("a")
    # A prepended sign and a syllable are 5 bytes: "P" if nothing follows in the cluster.
    after = {syllable: behind(ARABIC + syllable) - extends for syllable in (KIYEOK, A, KIYEOK_END)}
    hangul = set().union(*after.values())
    before_a, before_end = (ask(lambda ch: ARABIC + ch + last, {ARABIC: "P"}, lambda line: len(line) == 3) & hangul
                            for last in (A, KIYEOK_END))
    vowels, ends = after[KIYEOK] & after[A], after[KIYEOK_END]
    syllables = after[KIYEOK] - vowels
    marks = joined("\u00a9", JOINER + HEART)
    extended = ask(lambda ch: ch + ACUTE + "\u0302", {ACUTE: "Z"}, lambda line: line.endswith("Z\u0302"))
    found = {
        "control": set(CODE_POINTS) - extended,
        "joiner": {ord(JOINER)},
        "extend": marks & extends - {ord(JOINER)},
        "prepend": ask(lambda ch: ch + "a" + ACUTE, {"a": "A"}, lambda line: line.endswith("A" + ACUTE)),
        "regional": set(range(0x1F1E6, 0x1F200)),  # pairs are never seen: they are too long
        "v": vowels, "t": ends, "l": syllables & before_a - before_end, "lv": syllables & before_a & before_end,
        "lvt": syllables & before_end - before_a,
    }
    found["spacing_mark"] = extends - found["extend"] - found["joiner"]
    consonants = joined("", VIRAMA + KA) - extends
    return found, {
        PICTOGRAPH: joined("", JOINER + HEART) - extends - consonants,
        CONSONANT: consonants,
        LINKER: joined(KA, KA) & extends,
        CONJUNCT_EXTEND: joined(KA, VIRAMA + KA) & extends,
    }


def main():
    found, flags = classes()
    value = dict.fromkeys(CODE_POINTS, 0)
    for name, members in found.items():
        for c in members:
            assert value[c] == 0, (hex(c), name, BREAKS[value[c]])
            value[c] = BREAKS.index(name)
    for flag, members in flags.items():
        for c in members:
            value[c] |= flag
    print(f"// Generated by tools/generate_grapheme_tables.py from tokenizers {tokenizers.__version__}. Do not edit.")
    print("// clang-format off")
    print("\n// first code point, class: a range lasts until the next entry\nconstexpr uint32_t kGraphemeRanges[] = {")
    points = [c for c in CODE_POINTS if c == 0 or value[c] != value.get(c - 1, value[0xD7FF])]
    emit(f"{c:#x},{value[c]}" for c in points)
    print("};\n// clang-format on")


if __name__ == "__main__":
    sys.exit(main())
