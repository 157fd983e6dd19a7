#!/usr/bin/env python3
"""Compares the sentences of `teratron preprocess --split-sentences` with nltk's PunktSentenceTokenizer.

Models: the small one of the test fixtures; one that nltk trains on the texts, which is also the reference for the built-in
English rules. Prints the number of sentence ends that both find, out of those that either finds. Needs
`pip install nltk numpy`.

    python bench/punkt_agreement.py --binary build/release/teratron/cli/teratron --data ../shared/data
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import nltk.data
import numpy
from nltk.tokenize.punkt import PunktSentenceTokenizer, PunktTrainer, load_punkt_params, save_punkt_params

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIXTURE_MODEL = ROOT / "tests/fixtures/preprocess/punkt_tab"


def texts(data):
    """Documents of about 3000 characters: plays and articles split at empty lines, passages unchanged. (Megatron-LM
    splits documents of more than a million characters before sentence splitting.)"""
    for file in ["tinyshakespeare.txt", "wikitext2-test.txt", "wikitext2-valid.txt"]:
        document = ""
        for paragraph in (data / file).read_text(encoding="utf-8").replace("\n \n", "\n\n").split("\n\n"):
            document += paragraph + "\n\n"
            if len(document) > 3000:
                yield document
                document = ""
    for line in open(data / "lambada_test.jsonl", encoding="utf-8"):
        yield json.loads(line)["text"]


def byte_decoder():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(other)}


def teratron(args, documents, folder, *flags):
    """The sentences of each document, read back from .bin and .idx."""
    with open(folder / "in.jsonl", "w", encoding="utf-8") as out:
        for document in documents:
            out.write(json.dumps({"text": document}) + "\n")
    subprocess.run([args.binary, "preprocess", "--input", folder / "in.jsonl", "--output-prefix", folder / "out",
                    "--split-sentences", "--workers", "2", "--tokenizer-type", "GPT2BPETokenizer", "--vocab-file",
                    args.data / "gpt2-vocab.json", "--merge-file", args.data / "gpt2-merges.txt", *flags],
                   check=True, capture_output=True)
    index = (folder / "out_text_sentence.idx").read_bytes()
    count, table = numpy.frombuffer(index, numpy.int64, 2, 18)
    lengths = numpy.frombuffer(index, numpy.int32, count, 34)
    starts = numpy.frombuffer(index, numpy.int64, table, 34 + 12 * count)
    ids = numpy.fromfile(folder / "out_text_sentence.bin", numpy.uint16)
    decoder, vocab = byte_decoder(), json.loads((args.data / "gpt2-vocab.json").read_text(encoding="utf-8"))
    token = {i: bytes(decoder[c] for c in word) for word, i in vocab.items() if i != 50256}
    ends = numpy.cumsum(lengths)
    sentences = [b"".join(token[i] for i in ids[end - length:end]).decode() for end, length in zip(ends, lengths)]
    return [sentences[a:b] for a, b in zip(starts, starts[1:])]


def sentence_ends(sentences):
    """Number of non-whitespace characters before each sentence end but the last."""
    counts = numpy.cumsum([len("".join(s.split())) for s in sentences])
    return set(counts[:-1].tolist())


def report(name, ours, theirs):
    same = sum(a == b for a, b in zip(ours, theirs))
    both = sum(len(sentence_ends(a) & sentence_ends(b)) for a, b in zip(ours, theirs))
    either = sum(len(sentence_ends(a) | sentence_ends(b)) for a, b in zip(ours, theirs))
    print(f"{name}: {same} of {len(theirs)} documents equal, {both} of {either} sentence ends in both "
          f"({100 * both / either:.2f} %)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/teratron/cli/teratron")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("../shared/data"))
    args = parser.parse_args()
    documents = list(texts(args.data))
    trainer = PunktTrainer()
    trainer.INCLUDE_ALL_COLLOCS = True
    trainer.train("\n".join(documents), finalize=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        trained = folder / "trained"
        nltk.data.path[:0] = [name, str(FIXTURE_MODEL.parent)]  # nltk reads and writes only there
        save_punkt_params(trainer.get_params(), str(trained))
        for label, model in (("fixture model", FIXTURE_MODEL), ("model trained by nltk on the texts", trained)):
            reference = PunktSentenceTokenizer(load_punkt_params(nltk.data.FileSystemPathPointer(str(model))))
            theirs = [reference.tokenize(document) for document in documents]
            report(label, teratron(args, documents, folder, "--punkt-model", str(model)), theirs)
        report("built-in English rules against that model", teratron(args, documents, folder), theirs)


if __name__ == "__main__":
    main()
