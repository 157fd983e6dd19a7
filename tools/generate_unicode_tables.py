#!/usr/bin/env python3
"""Writes teratron/tokenizer/unicode/unicode_tables.inc.

The tables must agree with what Hugging Face `tokenizers` does, whatever Unicode version it carries, so they are
derived by asking that library about every code point. The `python_*` columns (the original Python tokenizer of
BERT) come from `unicodedata` and `str.lower`.

    python tools/generate_unicode_tables.py [> teratron/tokenizer/unicode/unicode_tables.inc]
"""
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def regex_class(pattern):
    """The code points that a character class of the library's regex engine matches."""
    splitter = pre_tokenizers.Split(Regex(pattern), "removed")
    text = "".join(map(chr, CODE_POINTS))
    rest = set()
    for piece, _ in splitter.pre_tokenize_str(text):
        rest.update(map(ord, piece))
    return set(CODE_POINTS) - rest


def word_class():
    """\\w of the engine that guards `single_word` added tokens (not the one of the pre-tokenizers)."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.add_tokens([AddedToken("zqz", single_word=True, normalized=False)])
    token = tokenizer.token_to_id("zqz")
    found = set()
    for begin in range(0, len(CODE_POINTS), 4096):
        chunk = CODE_POINTS[begin:begin + 4096]
        text = "".join(" " + chr(c) + "zqz " for c in chunk)
        encoding = tokenizer.encode(text)
        starts = {a for i, (a, _) in zip(encoding.ids, encoding.offsets) if i == token}
        found.update(c for i, c in enumerate(chunk) if 6 * i + 2 not in starts)
    return found


def bert_columns():
    cleaner = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False,
                                         lowercase=False)
    stripper = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True,
                                          lowercase=False)
    split = pre_tokenizers.BertPreTokenizer()
    drop, white, punctuation, mark = set(), set(), set(), set()
    for c in CODE_POINTS:
        ch = chr(c)
        if cleaner.normalize_str(ch) == "":
            drop.add(c)
        if stripper.normalize_str(ch) == "":
            mark.add(c)
        pieces = [p for p, _ in split.pre_tokenize_str("a" + ch + "a")]
        if len(pieces) == 2:
            white.add(c)
        elif len(pieces) == 3:
            punctuation.add(c)
    return drop, white, punctuation, mark


def python_columns():
    control, punctuation, mark, blank, split, cased, ignorable = (set() for _ in range(7))
    for c in CODE_POINTS:
        ch = chr(c)
        category = unicodedata.category(ch)
        if category in ("Cc", "Cf") and ch not in "\t\n\r":
            control.add(c)
        if 33 <= c <= 47 or 58 <= c <= 64 or 91 <= c <= 96 or 123 <= c <= 126 or category[0] == "P":
            punctuation.add(c)
        if category == "Mn":
            mark.add(c)
        if ch in " \t\n\r" or category == "Zs":
            blank.add(c)
        if ch.isspace():
            split.add(c)
        # What decides whether a capital sigma is a word's last letter.
        if (ch + "\u03a3").lower().endswith("\u03c2"):
            cased.add(c)
        elif ("A" + ch + "\u03a3").lower().endswith("\u03c2"):
            ignorable.add(c)
    return control, punctuation, mark, blank, split, cased, ignorable


def combining_classes():
    """Canonical combining class as the library's NFD orders marks, found with one probe per known class."""
    nfd = normalizers.NFD().normalize_str
    probes = {}
    for c in CODE_POINTS:
        k = unicodedata.combining(chr(c))
        # Only marks that the library knows too: U+0345 (240, the highest class) moves behind every other one.
        if k and (k == 240 or nfd("\u0345" + chr(c)) != "\u0345" + chr(c)):
            probes.setdefault(k, chr(c))
    known = sorted(probes)
    result = {}
    for c in CODE_POINTS:
        ch = chr(c)
        if nfd(ch) != ch:
            continue  # decomposes; its parts are looked at on their own
        # Swapped with a mark of class 1 when its own class is above, or a mark of 240 moves before it.
        above_lowest = nfd(ch + probes[1]) != ch + probes[1]
        if not above_lowest and nfd(probes[240] + ch) == probes[240] + ch:
            continue
        below = [k for k in known if nfd(ch + probes[k]) != ch + probes[k]]
        above = [k for k in known if nfd(probes[k] + ch) != probes[k] + ch]
        between = [k for k in known if (not below or k > below[-1]) and (not above or k < above[0])]
        assert len(between) == 1, (hex(c), below, above)
        result[c] = between[0]
    return result


def is_hangul(c):
    return 0xAC00 <= c < 0xAC00 + 11172


def mapping(function):
    return {c: [ord(x) for x in function(chr(c))] for c in CODE_POINTS
            if function(chr(c)) != chr(c) and not is_hangul(c)}


def compositions(nfd_map):
    """(first, second) -> composed, for canonical pairs that the library's NFC puts together."""
    nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
    pairs = {}
    for c, parts in nfd_map.items():
        if len(parts) < 2 or nfc(chr(c)) != chr(c):
            continue
        # The primary composite of all parts but the last, with the last one.
        head = nfc("".join(map(chr, parts[:-1])))
        if len(head) == 1 and nfc(head + chr(parts[-1])) == chr(c):
            pairs[(ord(head), parts[-1])] = c
        else:
            raise AssertionError(hex(c))
        assert nfd(chr(c)) == "".join(map(chr, parts))
    return pairs


def emit(items):
    line = ""
    for item in items:
        if len(line) + len(item) + 1 > 110:
            print(line)
            line = ""
        line += item + ","
    print(line)


def emit_mapping(name, table):
    print(f"\n// code point, length, replacement...\nconstexpr uint32_t {name}[] = {{")
    emit(f"{c:#x},{len(r)}" + "".join(f",{x:#x}" for x in r) for c, r in sorted(table.items()))
    print("};")


def main():
    letter, number, space = (regex_class(p) for p in (r"\p{L}", r"\p{N}", r"\s"))
    drop, white, punctuation, mark = bert_columns()
    lower = mapping(normalizers.Lowercase().normalize_str)
    nfd = mapping(normalizers.NFD().normalize_str)
    python_lower = mapping(str.lower)
    python_nfd = mapping(lambda s: unicodedata.normalize("NFD", s))
    # The order of unicode::Flag.
    columns = [letter, number, space, word_class(), drop, punctuation, mark, white, *python_columns()]
    flags = [0] * 0x110000
    for bit, column in enumerate(columns):
        for c in column:
            flags[c] |= 1 << bit

    print(f"// Generated by tools/generate_unicode_tables.py from tokenizers {tokenizers.__version__} and Unicode "
          f"{unicodedata.unidata_version} of Python. Do not edit.")
    print("// clang-format off")
    print("\n// first code point, flags: a range lasts until the next entry\nconstexpr uint32_t kFlagRanges[] = {")
    emit(f"{c:#x},{flags[c]:#x}" for c in range(0x110000) if c == 0 or flags[c] != flags[c - 1])
    print("};")
    print("\n// code point, combining class\nconstexpr uint32_t kCombiningClasses[] = {")
    emit(f"{c:#x},{k}" for c, k in sorted(combining_classes().items()))
    print("};")
    emit_mapping("kDecompositions", nfd)
    print("\n// first, second, composed\nconstexpr uint32_t kCompositions[] = {")
    emit(f"{a:#x},{b:#x},{c:#x}" for (a, b), c in sorted(compositions(nfd).items()))
    print("};")
    emit_mapping("kLower", lower)
    # Only where Python's older tables say something else; an empty difference is spelled as the code point itself.
    def difference(old, new):
        return {c: old.get(c, [c]) for c in sorted(set(old) | set(new)) if old.get(c) != new.get(c)}
    emit_mapping("kPythonLowerDifference", difference(python_lower, lower))
    emit_mapping("kPythonDecompositionDifference", difference(python_nfd, nfd))
    print("// clang-format on")


if __name__ == "__main__":
    sys.exit(main())
