"""Token ids of SentencePiece and tiktoken vocabularies against the packages `sentencepiece` and `tiktoken`.

Environment: tokenizer_program.py.
"""
import base64
import json
import random
import unicodedata

import pytest

sentencepiece = pytest.importorskip("sentencepiece")
tiktoken = pytest.importorskip("tiktoken")
from tokenizer_program import (DATA, STRINGS, TEXTS, assert_same, encode_document, encode_lines,  # noqa: E402
                               offsets_of_lines, random_strings, read, run)

USER_DEFINED = ["<user>", "New York", "▁▁"]
NAMES = {"nmt_nfkc": {}, "nfkc_cf": {"normalization_rule_name": "nfkc_cf"},
         "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False},
         "llama": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True,
                   "split_digits": True},
         "suffix": {"treat_whitespace_as_suffix": True, "byte_fallback": True},
         "symbols": {"user_defined_symbols": USER_DEFINED, "control_symbols": ["<EOD>"], "pad_id": 3}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Trains a small model once; (kind, name) -> path."""
    built = {}

    def build(kind, name):
        if (kind, name) not in built:
            prefix = tmp_path_factory.mktemp("sentencepiece") / f"{kind}-{name}"
            text = (DATA / "tinyshakespeare.txt").read_text(encoding="utf-8")[:200_000]
            text += "\n".join(line for line in random_strings(300, seed=3) if "\0" not in line)
            corpus = prefix.with_suffix(".txt")
            corpus.write_text(text, encoding="utf-8")
            sentencepiece.SentencePieceTrainer.train(
                input=str(corpus), model_prefix=str(prefix), model_type=kind, vocab_size=1500, hard_vocab_limit=False,
                character_coverage=0.98, num_threads=2, minloglevel=2, **NAMES[name])
            built[kind, name] = f"{prefix}.model"
        return built[kind, name]
    return build


def flags(path, kind="GPTSentencePieceTokenizer", version="0.7"):
    return ["--tokenizer-type", kind, "--tokenizer-model", str(path), "--compat-version", version]


# Text that no replacement turns into something else when it passes a pipe: no NUL, which the library keeps.
LINES = [line for line in random_strings(STRINGS) if "\0" not in line] + ["a  b ", " New York<user>", "▁▁", " ▁ ", "x" * 300]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece(model, kind, name):
    reference = sentencepiece.SentencePieceProcessor(model_file=model(kind, name))
    ids = encode_lines(flags(model(kind, name)), LINES)
    assert_same(LINES, ids, reference.encode(LINES))
    places = [reference.encode(line, return_type="offset_mapping")["offsets"] for line in LINES]
    assert_same(LINES, offsets_of_lines(flags(model(kind, name)), LINES), places)
    for file in TEXTS[:2]:
        text = read(file)
        assert encode_document(flags(model(kind, name)), text) == reference.encode(text.decode()), file
    some = [line for line in ids if line][:2000]
    lines = "".join(" ".join(map(str, line)) + "\n" for line in some)
    assert run("decode", flags(model(kind, name)), lines.encode()).decode() == "".join(
        reference.decode(line) + "\n" for line in some)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_decoding_of_any_ids(model, kind):
    path = model(kind, "llama")
    reference = sentencepiece.SentencePieceProcessor(model_file=path)
    rng = random.Random(8)
    lists = [[rng.randrange(300 if rng.random() < 0.5 else len(reference)) for _ in range(12)] for _ in range(500)]
    lines = "".join(" ".join(map(str, line)) + "\n" for line in lists)
    ours = run("decode", flags(path), lines.encode())
    assert ours == "".join(reference.decode(line) + "\n" for line in lists).encode()


def test_llama2_and_megatrons_own(model):
    path = model("bpe", "symbols")
    reference = sentencepiece.SentencePieceProcessor(model_file=path)
    plain = reference.encode(LINES)
    assert_same(LINES, encode_lines(flags(path, "Llama2Tokenizer"), LINES), [[reference.bos_id(), *ids] for ids in plain])
    assert_same(LINES, encode_lines(flags(path, "Llama2Tokenizer", "head"), LINES), plain)

    # SentencePieceTokenizer adds tokens and looks for them first.
    vocab = {reference.id_to_piece(i): i for i in range(len(reference))}
    special = {}
    for token in ["<CLS>", "<SEP>", "<EOD>", "<MASK>", "<pad>", "<s>", "</s>", "<extra_id_0>", "<extra_id_1>"]:
        special[token] = vocab.setdefault(token, len(vocab))
    own = [*flags(path, "SentencePieceTokenizer"), "--vocab-extra-ids", "2"]
    texts = ["<CLS>a b<SEP>", "<EOD>", "<pad> x </s><s>y", "<extra_id_1> and <extra_id_0>", "plain <CLS"]

    def expected(text):
        ids, rest = [], text
        while True:
            found = [(rest.index(token), token) for token in special if token in rest]
            if not found:
                return ids + reference.encode(rest)
            at, token = min(found)
            ids += reference.encode(rest[:at]) + [special[token]]
            rest = rest[at + len(token):]
    assert encode_lines(own, texts) == [expected(text) for text in texts]
    assert f"vocabulary: {len(vocab)} " in run("info", own, b"").decode()


def gpt2_ranks():
    """Bytes of GPT-2's tokens by rank, in tiktoken's order: the 256 bytes as numbers first."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in printable}
    byte_of |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)}
    vocab = json.loads((DATA / "gpt2-vocab.json").read_text(encoding="utf-8"))
    tokens = [bytes(byte_of[c] for c in token) for token in sorted(vocab, key=vocab.get) if token != "<|endoftext|>"]
    return [bytes([b]) for b in range(256)] + [token for token in tokens if len(token) > 1]


PATTERNS = {"v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
            "v2": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
                  r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
                  r"|\s+(?!\S)|\s+"}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tiktoken(pattern, tmp_path):
    tokens = gpt2_ranks()
    ranks = {token: i for i, token in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(
        [{"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode(errors="replace")}
         for i, token in enumerate(tokens)]))
    (tmp_path / "ranks.tiktoken").write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)))
    names = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"]
    special = {name: i for i, name in enumerate(names + [f"<SPECIAL_{i}>" for i in range(7, 20)])}
    shifted = tiktoken.Encoding("shifted", pat_str=PATTERNS[pattern], special_tokens=special,
                                mergeable_ranks={token: i + 20 for token, i in ranks.items()})
    plain = tiktoken.Encoding("plain", pat_str=PATTERNS[pattern], mergeable_ranks=ranks,
                              special_tokens={"<|endoftext|>": len(ranks)})
    common = ["--tokenizer-type", "TikTokenizer", "--tiktoken-pattern", pattern]
    json_flags = [*common, "--tokenizer-model", str(tmp_path / "vocab.json"), "--vocab-size", str(len(ranks) + 20),
                  "--tiktoken-num-special-tokens", "20"]
    line_flags = [*common, "--tokenizer-model", str(tmp_path / "ranks.tiktoken")]
    lines = [*LINES, "</s> <pad>x", "a<|endoftext|>"]
    assert_same(lines, encode_lines(line_flags, lines), [plain.encode_ordinary(line) for line in lines])
    begins = [[begin for begin, _ in line] for line in offsets_of_lines(line_flags, lines)]
    assert_same(lines, begins, [plain.decode_with_offsets(plain.encode_ordinary(line))[1] for line in lines])
    assert_same(lines, encode_lines(json_flags, lines), [shifted.encode_ordinary(line) for line in lines])
    assert_same(lines, encode_lines([*json_flags, "--compat-version", "head"], lines),
                [shifted.encode(line, allowed_special="all") for line in lines])
    for file in TEXTS[:2]:
        text = read(file)
        assert encode_document(line_flags, text) == plain.encode_ordinary(text.decode()), file
    ids = "".join(" ".join(map(str, plain.encode_ordinary(line))) + "\n" for line in lines)
    assert run("decode", line_flags, ids.encode()) == "".join(line + "\n" for line in lines).encode()


def tekken(folder, special):
    """Mistral's tekken.json, and what mistral_common makes of it: ranks behind the special tokens, which fill up to 40."""
    tokens = gpt2_ranks()[:4000]
    config = {"pattern": PATTERNS["v2"], "num_vocab_tokens": len(tokens), "default_vocab_size": 3040,
              "default_num_special_tokens": 40, "version": "v3"}
    file = {"config": config, "vocab": [{"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
                                        for i, token in enumerate(tokens)]}
    if special:
        file["special_tokens"] = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(special)]
    (folder / "tekken.json").write_text(json.dumps(file))
    return tiktoken.Encoding("tekken", pat_str=PATTERNS["v2"], special_tokens={},
                             mergeable_ranks={token: i for i, token in enumerate(tokens[:3000])})


@pytest.mark.parametrize("special", [None, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]])
def test_tekken_as_published(special, tmp_path):
    expected = tekken(tmp_path, special)
    flags = ["--tokenizer-type", "TikTokenizer", "--tokenizer-model", str(tmp_path / "tekken.json")]
    assert_same(LINES, encode_lines(flags, LINES), [[i + 40 for i in expected.encode_ordinary(line)] for line in LINES])
    name = "<SPECIAL_5>" if special else "[AVAILABLE_TOOLS]"
    assert run("decode", flags, b"1 40 2 5 39\n").decode() == f"<s>\0</s>{name}<SPECIAL_39>\n"
    assert "vocabulary: 3040" in run("info", flags, b"").decode()
    smaller = [*flags, "--vocab-size", "2040"]
    assert "vocabulary: 2040" in run("info", smaller, b"").decode()
