"""Documents of sentences, for the models that train on them."""

import json
import random

WORDS = "the a cat dog bird sat ran flew on under over mat tree house and then slept while it was dark cold".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_sentences(folder, documents, longest):
    """vocab.txt, and text.json with documents of 2 to `longest` sentences; returns the flags of the tokenizer."""
    generator = random.Random(3)

    def sentence():
        return " ".join(generator.choice(WORDS) for _ in range(generator.randint(3, 9))).capitalize() + "."

    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS, ".", "##s"]) + "\n")
    texts = [" ".join(sentence() for _ in range(generator.randint(2, longest))) for _ in range(documents)]
    (folder / "text.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return ["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", str(folder / "vocab.txt")]
