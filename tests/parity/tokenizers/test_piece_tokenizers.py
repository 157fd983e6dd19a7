"""tokenizer.json with Unigram (T5, mT5) and with BPE of characters (Llama 2, Mistral, Gemma) against the package
`tokenizers`: ids, offsets and decoded text.

Environment: tokenizer_program.py.
"""
import base64
import json
import pathlib
import random
import subprocess

import pytest

tokenizers = pytest.importorskip("tokenizers")
sentencepiece = pytest.importorskip("sentencepiece")
from sentencepiece import sentencepiece_model_pb2  # noqa: E402
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

from tokenizer_program import (BINARY, DATA, STRINGS, TEXTS, assert_same, encode_document, encode_lines,  # noqa: E402
                               offsets_of_lines, random_strings, read, run)

SPACE = "▁"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def corpus():
    lines = (DATA / "tinyshakespeare.txt").read_text(encoding="utf-8")[:150_000].splitlines()
    return [*lines, *random_strings(300, seed=3)]


def trained(folder, rules):
    """The pieces with their scores, and the compiled rules, of a small SentencePiece model with the ids of T5."""
    text, prefix = folder / "corpus.txt", folder / rules
    text.write_text("\n".join(line for line in corpus() if "\0" not in line), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(prefix), vocab_size=1500, hard_vocab_limit=False, character_coverage=0.98,
        normalization_rule_name=rules, minloglevel=2, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(prefix.with_suffix(".model").read_bytes())
    return [(piece.piece, piece.score) for piece in model.pieces], model.normalizer_spec.precompiled_charsmap


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    return {name: trained(folder, name) for name in ("nmt_nfkc", "nfkc_cf")}


def t5(pieces, charsmap, words=None, byte_fallback=False, sentinels=20):
    vocab = [*pieces, *((byte, -20.0) for byte in BYTES)] if byte_fallback else pieces
    made = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=2, byte_fallback=byte_fallback))
    made.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Strip(left=False, right=True),
                                            normalizers.Replace(Regex(" {2,}"), SPACE)])
    made.pre_tokenizer = words or pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    made.add_special_tokens(["<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(sentinels))])
    made.add_tokens([tokenizers.AddedToken("WORD", single_word=True), tokenizers.AddedToken("left", lstrip=True),
                     tokenizers.AddedToken("right", rstrip=True)])
    return made


def bpe(byte_fallback=True, fuse_unk=True, ignore_merges=False):
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=1200, show_progress=False, limit_alphabet=150))
    model = json.loads(trained.to_str())["model"]
    order = ["<unk>", "<s>", "</s>", *(BYTES if byte_fallback else []), *model["vocab"]]
    return models.BPE({token: i for i, token in enumerate(order)}, [tuple(merge) for merge in model["merges"]],
                      unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback, ignore_merges=ignore_merges)


def llama_decoder():
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                              decoders.Strip(content=" ", left=1)])


def llama(model, normalizer=None, words=None, decoder=None):
    made = tokenizers.Tokenizer(model)
    if normalizer:
        made.normalizer = normalizer
    if words:
        made.pre_tokenizer = words
    made.decoder = decoder or llama_decoder()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.add_tokens([tokenizers.AddedToken("WORD", single_word=True, normalized=True), "<a>"])
    return made


def prepend():
    return normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])


TOKENIZERS = {
    "t5": lambda rules: t5(*rules["nmt_nfkc"]),
    "t5-words": lambda rules: t5(*rules["nmt_nfkc"], pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])),
    "t5-bytes": lambda rules: t5(*rules["nfkc_cf"], pre_tokenizers.Metaspace(prepend_scheme="first"), byte_fallback=True),
    "llama-2": lambda _: llama(bpe(), prepend()),
    "mistral": lambda _: llama(bpe(), words=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "gemma": lambda _: llama(bpe(), normalizers.Replace(" ", SPACE), pre_tokenizers.Split(" ", "merged_with_previous"),
                             decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])),
    "no-bytes": lambda _: llama(bpe(byte_fallback=False), prepend()),
    "unfused": lambda _: llama(bpe(byte_fallback=False, fuse_unk=False, ignore_merges=True), words=pre_tokenizers.Metaspace(
        prepend_scheme="never"), decoder=decoders.Metaspace(prepend_scheme="never")),
}


@pytest.fixture(scope="module")
def made(rules, tmp_path_factory):
    built = {}

    def make(name):
        if name not in built:
            path = tmp_path_factory.mktemp(name) / "tokenizer.json"
            reference = TOKENIZERS[name](rules)
            reference.save(str(path))
            built[name] = reference, ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(path)]
        return built[name]
    return make


LINES = [*random_strings(STRINGS), "a  b ", " WORD ", "keyWORD", "<extra_id_3> a <extra_id_19>", "</s></s>x", "  ", "x" * 300,
         "\r\n\r", "ﬀ\u0301", "\u0600a\u0601", "a left  right b"]
LINES = [line for line in LINES if "\n" not in line]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_texts(made, name):
    reference, flags = made(name)
    encoded = reference.encode_batch(LINES)
    ids = encode_lines(flags, LINES)
    assert_same(LINES, ids, [line.ids for line in encoded])
    for file in TEXTS:
        text = read(file)
        assert encode_document(flags, text) == reference.encode(text.decode()).ids, file
    some = [line for line in ids if line][:2000]
    lines = "".join(" ".join(map(str, line)) + "\n" for line in some)
    ours = run("decode", flags, lines.encode()).decode()
    assert ours == "".join(reference.decode(line, skip_special_tokens=False) + "\n" for line in some)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_offsets(made, name):
    reference, flags = made(name)
    lines = LINES[-1200:]
    expected = [[tuple(offsets) for offsets in line.offsets] for line in reference.encode_batch(lines)]
    assert_same(lines, offsets_of_lines(flags, lines), expected)


@pytest.mark.parametrize("name", ["t5", "t5-bytes", "llama-2", "gemma", "unfused"])
def test_decoding_of_any_ids(made, name):
    reference, flags = made(name)
    rng = random.Random(8)
    size = reference.get_vocab_size()
    lists = [[rng.randrange(300 if rng.random() < 0.5 else size) for _ in range(12)] for _ in range(500)]
    lists = [line for line in lists if "\n" not in reference.decode(line, skip_special_tokens=False)]
    ours = run("decode", flags, "".join(" ".join(map(str, line)) + "\n" for line in lists).encode())
    assert ours.decode() == "".join(reference.decode(line, skip_special_tokens=False) + "\n" for line in lists)


def test_special_tokens(made):
    """What T5's data need: sentinels in order, padding and the end."""
    reference, flags = made("t5")
    path = pathlib.Path(flags[-1])
    first = reference.token_to_id("<extra_id_0>")
    assert encode_lines(flags, ["<extra_id_1><extra_id_0>"]) == [[first + 1, first, 1]]
    assert encode_lines([*flags, "--tokenizer-hf-no-include-special-tokens"], ["<extra_id_0>"]) == [[first]]
    assert path.exists()


def change(path, folder, edit):
    content = json.loads(path.read_text())
    edit(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return subprocess.run([BINARY, "tokenizer", "encode", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
                           folder / "tokenizer.json"], input=b"a\n", capture_output=True, check=False)


BAD = {
    "unk_id 99999 is not among": ("t5", lambda file: file["model"].update(unk_id=99999)),
    "appears twice": ("t5", lambda file: file["model"]["vocab"].append(file["model"]["vocab"][7])),
    "not a pair of piece and score": ("t5", lambda file: file["model"]["vocab"].append(["x"])),
    "not valid base64": ("t5", lambda file: file["normalizer"]["normalizers"][0].update(precompiled_charsmap="?")),
    "invalid normalization rules": ("t5", lambda file: file["normalizer"]["normalizers"][0].update(
        precompiled_charsmap=base64.b64encode(b"\1\0\0\0ab").decode())),
    "normalizer 'Nmt' is not supported": ("t5", lambda file: file["normalizer"]["normalizers"].append({"type": "Nmt"})),
    "is not one character": ("t5", lambda file: file["pre_tokenizer"].update(replacement="ab")),
    "unk_token 'x\\u0000'": ("llama-2", lambda file: file["model"].update(unk_token="x\0")),
    "the merged token": ("llama-2", lambda file: file["model"]["merges"].append(["e", "zzz"])),
    "belongs to two tokens": ("llama-2", lambda file: file["model"]["vocab"].update(twice=5)),
    "out of range": ("llama-2", lambda file: file["model"]["vocab"].update(far=2**31 - 1)),
    "decoder 'CTC' is not supported": ("llama-2", lambda file: file["decoder"]["decoders"].append({"type": "CTC"})),
    "not a number of characters": ("llama-2", lambda file: file["decoder"]["decoders"][3].update(start=-1)),
}


@pytest.mark.parametrize("says", BAD)
def test_bad_files(made, tmp_path, says):
    name, edit = BAD[says]
    done = change(pathlib.Path(made(name)[1][-1]), tmp_path, edit)
    assert done.returncode == 3 and b"tokenizer.json" in done.stderr
    assert says.split("\\")[0] in done.stderr.decode()
