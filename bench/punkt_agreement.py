#!/usr/bin/env python3
"""How `teratron preprocess --split-sentences` cuts the shared texts, beside nltk's PunktSentenceTokenizer.

Models: the small one of the fixtures, one that nltk trains on the texts, and for the built-in English rules (no model) the
latter as a judge. Counted are the ends of sentences: those that both find against those that either finds (nltk's own English model
cannot be had from the package registry). Needs `pip install nltk numpy`.

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
    """Documents of some thousand characters: plays and articles cut at empty lines, passages as they are. (Megatron-LM
    cuts documents of more than a million characters before it looks for sentences.)"""
    for file in ["tinyshakespeare.txt", "wikitext2-test.txt", "wikitext2-valid.txt"]:
        document = ""
        for paragraph in (data / file).read_text(encoding="utf-8").replace("\n \n", "\n\n").split("\n\n"):
            document += paragraph + "\n\n"
            if len(document) > 3000:
                yield document
                document = ""
    for line in open(data / "lambada_test.jsonl", encoding="utf-8"):
        yield json.loads(line)["text"]


def byte_of():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(other)}


def teratron(args, documents, folder, *flags):
    """The sentences of each document, read back out of .bin and .idx."""
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
    alphabet, spelled = byte_of(), json.loads((args.data / "gpt2-vocab.json").read_text(encoding="utf-8"))
    token = {i: bytes(alphabet[c] for c in word) for word, i in spelled.items() if i != 50256}
    ends = numpy.cumsum(lengths)
    sentences = [b"".join(token[i] for i in ids[end - length:end]).decode() for end, length in zip(ends, lengths)]
    return [sentences[a:b] for a, b in zip(starts, starts[1:])]


def sentence_ends(sentences):
    """Characters other than white space up to each end but the last."""
    counts = numpy.cumsum([len("".join(s.split())) for s in sentences])
    return set(counts[:-1].tolist())


def report(name, ours, theirs):
    same = sum(a == b for a, b in zip(ours, theirs))
    both = sum(len(sentence_ends(a) & sentence_ends(b)) for a, b in zip(ours, theirs))
    either = sum(len(sentence_ends(a) | sentence_ends(b)) for a, b in zip(ours, theirs))
    print(f"{name}: {same} of {len(theirs)} documents equal, {both} of {either} ends of sentences in both "
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
        nltk.data.path[:0] = [name, str(FIXTURE_MODEL.parent)]  # it reads and writes nowhere else
        save_punkt_params(trainer.get_params(), str(trained))
        for label, model in (("model of the fixtures", FIXTURE_MODEL), ("model that nltk trained on the texts", trained)):
            reference = PunktSentenceTokenizer(load_punkt_params(nltk.data.FileSystemPathPointer(str(model))))
            theirs = [reference.tokenize(document) for document in documents]
            report(label, teratron(args, documents, folder, "--punkt-model", str(model)), theirs)
        report("built-in rules for English beside the latter", teratron(args, documents, folder), theirs)


if __name__ == "__main__":
    main()
