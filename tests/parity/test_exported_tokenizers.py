"""The tokenizer of an exported folder, as transformers' AutoTokenizer reads it: the ids of the run's own tokenizer.

TERATRON_BINARY names the program.
"""
import base64
import json
import random
import subprocess

import pytest

from test_hf_conversion import BINARY, BERT_VOCAB, run, small_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

MODEL = ["--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 16,
         "--max-position-embeddings", 16, "--micro-batch-size", 2, "--train-iters", 1, "--lr", "1e-3", "--eval-iters", 0,
         "--device", "cpu", "--mock-data"]
LINES = ["the cat sat on the mat", " two  spaces  and tabs\tend ", "Größe, naïve café №5 ½ ﬁne Ａ", "中文 日本語 한국어",
         "x" * 80, "f(x) = {'a': 1.5e-3}  # don't", "😀👍🏽 e\u0301", "1234567890 12,345.67", "THE END.", " ", "a\u00a0b",
         "New York<user> 3 <user>x ▁"]


def texts():
    """Words of several scripts in random order, with random spacing."""
    generator = random.Random(5)
    words = [word for line in LINES for word in line.split()] + ["sat", "mats", "dogged", "ΑΒΓ", "привет", "0", "!?", "ß"]
    return LINES + ["".join(generator.choice(words) + generator.choice([" ", " ", "  ", ""]) for _ in range(12))
                    for _ in range(150)]


def export(flags, folder):
    run("pretrain", "gpt", *MODEL, *flags, "--save", folder / "ckpt")
    return run("ckpt", "convert", "--load", folder / "ckpt", "--to-hf", folder / "out")


def ours(flags, lines):
    done = subprocess.run([BINARY, "tokenizer", "encode", *map(str, flags)], input="\n".join(lines) + "\n",
                          capture_output=True, text=True, check=True)
    return [[int(word) for word in line.split()] for line in done.stdout.split("\n")[:len(lines)]]


def check(flags, folder, special=True, model=()):
    assert "no tokenizer" not in export([*flags, *model], folder)
    loaded = transformers.AutoTokenizer.from_pretrained(folder / "out")
    lines = texts()
    for line, ids in zip(lines, ours(flags, lines)):
        assert loaded.encode(line, add_special_tokens=special) == ids, line
    return loaded


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    built = {}

    def build(kind, **options):
        name = f"{kind}-{'-'.join(options)}"
        if name not in built:
            folder = tmp_path_factory.mktemp("sentencepiece")
            (folder / "text.txt").write_text("\n".join(texts() * 5), encoding="utf-8")
            sentencepiece.SentencePieceTrainer.train(
                input=str(folder / "text.txt"), model_prefix=str(folder / "model"), model_type=kind, vocab_size=420,
                hard_vocab_limit=False, character_coverage=0.99, num_threads=2, minloglevel=2, **options)
            built[name] = folder / "model.model"
        return built[name]
    return build


OPTIONS = {"nfkc": {}, "bytes": {"normalization_rule_name": "identity", "byte_fallback": True, "split_digits": True},
           "bare": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False},
           "symbols": {"user_defined_symbols": ["<user>", "New York"], "pad_id": 3}}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece(kind, options, sentences, tmp_path):
    path = sentences(kind, **OPTIONS[options])
    loaded = check(["--tokenizer-type", "GPTSentencePieceTokenizer", "--tokenizer-model", path], tmp_path)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert loaded.eos_token_id == reference.eos_id() and loaded.bos_token_id == reference.bos_id()
    for line in ("the cat sat on the mat", "中文 cat"):
        assert loaded.decode(reference.encode(line)) == reference.decode(reference.encode(line))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (reference.bos_id(), reference.eos_id())


@pytest.mark.parametrize("kind", ["SentencePieceTokenizer", "Llama2Tokenizer"])
def test_what_megatron_adds_to_sentencepiece(kind, sentences, tmp_path):
    flags = ["--tokenizer-type", kind, "--tokenizer-model", sentences("bpe", **OPTIONS["bytes"])]
    loaded = check(flags + (["--vocab-extra-ids", 3] if kind == "SentencePieceTokenizer" else []), tmp_path)
    if kind == "SentencePieceTokenizer":
        assert loaded.encode("cat<EOD>the <extra_id_1>", add_special_tokens=False) == \
            ours([*flags, "--vocab-extra-ids", 3], ["cat<EOD>the <extra_id_1>"])[0]
    else:
        assert loaded("cat", "dog").input_ids.count(loaded.bos_token_id) == 2


def test_a_sentencepiece_model_that_no_file_can_hold_is_told(sentences, tmp_path):
    path = sentences("unigram", treat_whitespace_as_suffix=True)
    said = export(["--tokenizer-type", "GPTSentencePieceTokenizer", "--tokenizer-model", path], tmp_path)
    assert "spaces follow words" in said and not list((tmp_path / "out").glob("tokenizer*"))


@pytest.mark.parametrize("form", ["json", "lines"])
@pytest.mark.parametrize("pattern", ["v1", "v2"])
def test_tiktoken(form, pattern, tmp_path):
    vocab = json.loads((small_tokenizer(tmp_path / "tokenizer") / "vocab.json").read_text())
    bytes_of = byte_decoder()
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(bytes_of[c] for c in token) for token in vocab
               if len(token) > 1 and not token.startswith("<|")]
    if form == "json":
        entries = [{"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": ""}
                   for i, token in enumerate(tokens)]
        (tmp_path / "ranks.json").write_text(json.dumps(entries))
        flags = ["--tokenizer-model", tmp_path / "ranks.json", "--tiktoken-num-special-tokens", 10, "--vocab-size",
                 len(tokens) + 10]
    else:
        (tmp_path / "ranks.txt").write_text(
            "".join(f"{base64.b64encode(token).decode()} {i}\n" for i, token in enumerate(tokens)))
        flags = ["--tokenizer-model", tmp_path / "ranks.txt"]
    loaded = check(["--tokenizer-type", "TikTokenizer", "--tiktoken-pattern", pattern, *flags], tmp_path)
    assert len(loaded) == len(tokens) + (10 if form == "json" else 1)
    assert loaded.decode(loaded.encode("the cat 中")) == "the cat 中"


def byte_decoder():
    """GPT-2's printable characters for bytes, inverted."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


def test_byte_level_bpe(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "tokenizer")
    check(["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", tokenizer / "vocab.json", "--merge-file",
           tokenizer / "merges.txt"], tmp_path)


def test_tokenizer_json_under_another_name(tmp_path):
    tokenizer = small_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "my.json").write_bytes((tokenizer / "tokenizer.json").read_bytes())
    check(["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tmp_path / "my.json"], tmp_path,
          model=["--swiglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope", "--disable-bias-linear",
                 "--untie-embeddings-and-output-weights", "--hidden-dropout", 0, "--attention-dropout", 0])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] != "gpt2"


def test_wordpiece(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token in BERT_VOCAB))
    check(["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", tmp_path / "vocab.txt"], tmp_path, special=False)


def test_no_tokens_at_all(tmp_path):
    said = export(["--tokenizer-type", "NullTokenizer", "--vocab-size", 60], tmp_path)
    assert "NullTokenizer has no tokens, only ids" in said and not list((tmp_path / "out").glob("tokenizer*"))
