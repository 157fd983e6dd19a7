"""Token ids of the built program against Hugging Face `tokenizers`, on real text and on random Unicode.

Environment: tokenizer_program.py.
"""
import json
import random
import unicodedata

import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors  # noqa: E402
from tokenizer_program import (DATA, STRINGS, TEXTS, assert_same, encode_document, encode_lines, long_test,  # noqa: E402
                               offsets_of_lines, random_strings, read, run)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
# A pattern that is none of the known ones, without classes that change between Unicode versions.
OTHER = r"[A-Za-z]+|[0-9]{2}|\s+|[^A-Za-z0-9\s]+"


def bpe(**options):
    return models.BPE.from_file(str(DATA / "gpt2-vocab.json"), str(DATA / "gpt2-merges.txt"), **options)


def gpt2(prefix_space=False):
    tokenizer = Tokenizer(bpe())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def with_offsets(processor, **options):
    tokenizer = gpt2(**options)
    tokenizer.post_processor = processor
    return tokenizer


def split_tokenizer(pattern, behavior="isolated", invert=False, **options):
    tokenizer = Tokenizer(bpe(**options))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior, invert),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def without_letters(fuse):
    """A vocabulary that lacks most bytes."""
    kept = {c: i for i, c in enumerate(["<unk>", "Ġ", "h", "e", "l", "o", "Ã", "ä"])}
    tokenizer = Tokenizer(models.BPE(kept | {"he": 8, "ll": 9}, [("h", "e"), ("l", "l")], unk_token="<unk>", fuse_unk=fuse))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def llama3():
    tokenizer = split_tokenizer(LLAMA3, ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    return tokenizer


def qwen2():
    tokenizer = split_tokenizer(QWEN2)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def added():
    tokenizer = gpt2()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    tokenizer.add_tokens([AddedToken("WORD", single_word=True, normalized=False),
                          AddedToken("left", lstrip=True, normalized=True),
                          AddedToken("right", rstrip=True, normalized=False),
                          AddedToken("Größe", normalized=True),
                          AddedToken("<a>", lstrip=True, rstrip=True, normalized=False),
                          AddedToken("<a><b>", normalized=False)])
    return tokenizer


TOKENIZERS = {
    "gpt2": gpt2, "gpt2-prefix": lambda: gpt2(True),
    "gpt2-whole": lambda: with_offsets(processors.ByteLevel(trim_offsets=False)),
    "gpt2-trim": lambda: with_offsets(processors.ByteLevel(trim_offsets=True)),
    "gpt2-prefix-trim": lambda: with_offsets(processors.ByteLevel(trim_offsets=True, add_prefix_space=False), prefix_space=True),
    "roberta": lambda: with_offsets(processors.RobertaProcessing(("<|endoftext|>", 50256), ("!", 0)), prefix_space=True),
    "unknown": lambda: without_letters(False), "unknown-fused": lambda: without_letters(True),
    "llama3": llama3, "qwen2": qwen2, "added": added,
    "removed": lambda: split_tokenizer(OTHER, "removed", True),
    "gaps": lambda: split_tokenizer(r"\s+", "removed"),
    "previous": lambda: split_tokenizer(r"[0-9,]", "merged_with_previous"),
    "next": lambda: split_tokenizer(r"[0-9,]", "merged_with_next"),
    "contiguous": lambda: split_tokenizer(r"[0-9,]", "contiguous"),
    "other": lambda: split_tokenizer(OTHER),
}


def hugging_face_flags(tokenizer, folder):
    tokenizer.save(str(folder / "tokenizer.json"))
    return ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(folder)]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_hugging_face(name, tmp_path):
    tokenizer = TOKENIZERS[name]()
    flags = hugging_face_flags(tokenizer, tmp_path)
    for file in TEXTS:
        text = read(file)
        assert encode_document(flags, text) == tokenizer.encode(text.decode()).ids, file
    lines = list(random_strings(STRINGS))
    expected = tokenizer.encode_batch(lines)
    assert_same(lines, encode_lines(flags, lines), [e.ids for e in expected])
    assert_same(lines, offsets_of_lines(flags, lines), [e.offsets for e in expected])


@pytest.mark.parametrize("pattern", [LLAMA3, QWEN2], ids=["llama3", "qwen2"])
def test_line_ends(pattern, tmp_path):
    tokenizer = split_tokenizer(pattern)
    flags = hugging_face_flags(tokenizer, tmp_path)
    rng = random.Random(5)
    text = "".join(rng.choice(["\n", "\r", "\r\n", " ", "\t", "a", "'", "7", "!", "\u2028"]) for _ in range(20000))
    assert encode_document(flags, text.encode()) == tokenizer.encode(text).ids


GPT2_FLAGS = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(DATA / "gpt2-vocab.json"),
              "--merge-file", str(DATA / "gpt2-merges.txt")]


@long_test
def test_gpt2_bpe_on_whole_texts():
    for file in TEXTS:
        text = read(file)
        assert encode_document([*GPT2_FLAGS, "--compat-version", "head"], text) == gpt2().encode(text.decode()).ids, file


def test_gpt2_bpe():
    plain = Tokenizer(bpe())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = list(random_strings(STRINGS))
    assert_same(lines, encode_lines(GPT2_FLAGS, lines), [e.ids for e in plain.encode_batch(lines)])
    head = [*GPT2_FLAGS, "--compat-version", "head"]
    assert_same(lines, encode_lines(head, lines), [e.ids for e in gpt2().encode_batch(lines)])


def test_invalid_utf8_is_replaced():
    rng = random.Random(6)
    plain = Tokenizer(bpe())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = [bytes(rng.choice([rng.randint(0x0b, 255), 0xe2, 0x82, 0xac, 0xed, 0xa0, 0xf0, 0x9f, 0xf4, 0x41])
                   for _ in range(300)) for _ in range(300)]
    ours = run("encode", GPT2_FLAGS, b"".join(line + b"\n" for line in lines)).decode().split("\n")[:-1]
    theirs = [plain.encode(line.decode(errors="replace")).ids for line in lines]
    assert [[int(x) for x in line.split()] for line in ours] == theirs


def test_trained_vocabulary_loads_in_hugging_face(tmp_path):
    run("train", ["--input", *[str(DATA / f) for f in TEXTS[:2]], "--vocab-size", "2000", "--output", str(tmp_path)], b"")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 2000
    flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(tmp_path)]
    own = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(tmp_path / "vocab.json"),
           "--merge-file", str(tmp_path / "merges.txt"), "--compat-version", "head"]
    lines = list(random_strings(min(STRINGS, 5000)))
    expected = [e.ids for e in tokenizer.encode_batch(lines)]
    assert_same(lines, encode_lines(flags, lines), expected)
    assert_same(lines, encode_lines(own, lines), expected)


def test_training_learns_the_same_merges(tmp_path):
    documents = [json.loads(line)["text"] for line in open(DATA / "lambada_test.jsonl", encoding="utf-8")]
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.train_from_iterator(documents, tokenizers.trainers.BpeTrainer(
        vocab_size=2999, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    run("train", ["--input", str(DATA / "lambada_test.jsonl"), "--vocab-size", "3000", "--output", str(tmp_path)], b"")
    merges = (tmp_path / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
    expected = json.loads(theirs.to_str())["model"]["merges"]
    assert merges == [m if isinstance(m, str) else " ".join(m) for m in expected]


def test_decode_is_the_inverse():
    lines = [line for line in random_strings(2000) if "\n" not in line]
    ids = run("encode", GPT2_FLAGS, "".join(line + "\n" for line in lines).encode())
    assert run("decode", GPT2_FLAGS, ids) == "".join(line + "\n" for line in lines).encode()


BERT_VOCAB = DATA / "bert-uncased-vocab.txt"


def bert_flags(kind, version, *more):
    return ["--tokenizer-type", kind, "--vocab-file", str(BERT_VOCAB), "--compat-version", version, *more]


def hugging_face_bert(lower):
    vocab = {token: i for i, token in enumerate(BERT_VOCAB.read_text(encoding="utf-8").split("\n")[:-1])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    return tokenizer


@pytest.mark.parametrize("kind", ["BertWordPieceLowerCase", "BertWordPieceCase"])
def test_bert_head(kind):
    tokenizer = hugging_face_bert(kind == "BertWordPieceLowerCase")
    lines = list(random_strings(STRINGS))
    expected = tokenizer.encode_batch(lines)
    assert_same(lines, encode_lines(bert_flags(kind, "head"), lines), [e.ids for e in expected])
    assert_same(lines, offsets_of_lines(bert_flags(kind, "head"), lines), [e.offsets for e in expected])
    plain = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    assert_same(lines, encode_lines(bert_flags(kind, "head", "--tokenizer-hf-no-include-special-tokens"), lines), plain)
    for file in TEXTS[:2]:
        text = read(file)
        assert encode_document(bert_flags(kind, "head"), text) == tokenizer.encode(text.decode()).ids


def wordpiece(added=(), processor="template", decoder=decoders.WordPiece(), limit=100, **rules):
    """A WordPiece tokenizer.json; `rules` are BertNormalizer's."""
    vocab = {token: i for i, token in enumerate(BERT_VOCAB.read_text(encoding="utf-8").split("\n")[:-1])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=limit))
    if rules:
        tokenizer.normalizer = normalizers.BertNormalizer(**rules)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"])
    tokenizer.add_tokens(list(added))
    ends = [("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    tokenizer.post_processor = (
        processors.BertProcessing(ends[1], ends[0]) if processor == "bert" else
        processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends))
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


WORDPIECE = {
    "uncased": lambda: wordpiece(lowercase=True),
    "cased": lambda: wordpiece(lowercase=False, processor="bert", decoder=decoders.WordPiece(cleanup=False)),
    "accents kept": lambda: wordpiece(lowercase=True, strip_accents=False),
    "accents stripped": lambda: wordpiece(lowercase=False, strip_accents=True, limit=12),
    "text not cleaned": lambda: wordpiece(clean_text=False, handle_chinese_chars=True, lowercase=True),
    "Chinese words": lambda: wordpiece(handle_chinese_chars=False, lowercase=True, limit=7, decoder=None),
    "no normalizer": wordpiece,
    "added": lambda: wordpiece(
        lowercase=True, added=[AddedToken("WORD", single_word=True, normalized=False),
                               AddedToken("left", lstrip=True, normalized=True),
                               AddedToken("right", rstrip=True, normalized=False), AddedToken("Größe", normalized=True)]),
}
LONG_WORDS = ["a" * n for n in (6, 7, 8, 11, 12, 13, 99, 100, 101, 200, 201)] + ["é" * 100, "é" * 101, "e\u0301" * 60]


@pytest.mark.parametrize("name", WORDPIECE)
def test_wordpiece_json(name, tmp_path):
    tokenizer = WORDPIECE[name]()
    flags = hugging_face_flags(tokenizer, tmp_path)
    lines = [*LONG_WORDS, *random_strings(STRINGS)]
    expected = tokenizer.encode_batch(lines)
    assert_same(lines, encode_lines(flags, lines), [e.ids for e in expected])
    assert_same(lines, offsets_of_lines(flags, lines), [e.offsets for e in expected])
    plain = [e.ids for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
    assert_same(lines, encode_lines([*flags, "--tokenizer-hf-no-include-special-tokens"], lines), plain)
    for file in TEXTS[:2]:
        text = read(file)
        assert encode_document(flags, text) == tokenizer.encode(text.decode()).ids
    sentences = ["Don't stop, he said. \"It's [MASK] !\"", "unaffable 's 've do not 'm n't ?", "##s hello"]
    ids = [tokenizer.encode(text).ids for text in sentences]
    ours = run("decode", flags, "".join(" ".join(map(str, row)) + "\n" for row in ids).encode()).decode()
    assert ours.split("\n")[:-1] == [tokenizer.decode(row, skip_special_tokens=False) for row in ids]


class OriginalBert:
    """What the published Python tokenizer of BERT does, written from its description."""

    def __init__(self, lower):
        self.lower = lower
        self.vocab = {}
        for i, line in enumerate(BERT_VOCAB.read_text(encoding="utf-8").split("\n")[:-1]):
            self.vocab[line.strip()] = i

    @staticmethod
    def punctuation(c):
        return unicodedata.category(c)[0] == "P" or (c.isascii() and c.isprintable() and not c.isalnum() and c != " ")

    @staticmethod
    def cleaned(text):
        for c in text:
            category = unicodedata.category(c)
            if c in "\t\n\r " or category == "Zs":
                yield " "
            elif c not in "\0\ufffd" and category not in ("Cc", "Cf"):
                code = ord(c)
                chinese = any(a <= code <= b for a, b in [
                    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
                    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)])
                yield f" {c} " if chinese else c

    def words(self, text):
        for token in "".join(self.cleaned(text)).split():
            if self.lower:
                token = "".join(c for c in unicodedata.normalize("NFD", token.lower())
                                if unicodedata.category(c) != "Mn")
            yield from "".join(f" {c} " if self.punctuation(c) else c for c in token).split()

    def pieces(self, word):
        unknown = [self.vocab["[UNK]"]]
        if len(word) > 200:
            return unknown
        ids, begin = [], 0
        while begin < len(word):
            prefix = "##" if begin else ""
            end = next((e for e in range(len(word), begin, -1) if prefix + word[begin:e] in self.vocab), None)
            if end is None:
                return unknown
            ids.append(self.vocab[prefix + word[begin:end]])
            begin = end
        return ids

    def encode(self, text):
        return [i for word in self.words(text) for i in self.pieces(word)]


@pytest.mark.parametrize("kind", ["BertWordPieceLowerCase", "BertWordPieceCase"])
def test_bert_original(kind):
    if unicodedata.unidata_version != "14.0.0":
        pytest.skip(f"the tables are those of Python 3.11 (Unicode 14), not Unicode {unicodedata.unidata_version}")
    original = OriginalBert(kind == "BertWordPieceLowerCase")
    lines = list(random_strings(min(STRINGS, 30000)))
    assert_same(lines, encode_lines(bert_flags(kind, "0.7"), lines), [original.encode(line) for line in lines])
    text = read(TEXTS[0])
    assert encode_document(bert_flags(kind, "0.7"), text) == original.encode(text.decode())
