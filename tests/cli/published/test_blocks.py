"""Plain text as run_clm's blocks of tokens."""

import json
import os
from array import array
from itertools import accumulate
from pathlib import Path

import pytest
from program import needs_binary
from test_published_commands import TEXT, files, run  # noqa: F401

pytestmark = needs_binary


def tokens_of(prefix):
    """The documents of a dataset whose documents are one sequence each, and of tokens of 16 bits."""
    index = Path(f"{prefix}.idx").read_bytes()
    count = int.from_bytes(index[18:26], "little")
    tokens, lengths = array("H", Path(f"{prefix}.bin").read_bytes()), array("i", index[34:34 + 4 * count])
    ends = list(accumulate(lengths))
    return [tokens[end - length:end].tolist() for end, length in zip(ends, lengths)]


def test_blocks_of_a_text(files, tmp_path):  # noqa: F811
    """Against the tokens of each line: 1,000 rows at a time, the rest of each thousand dropped."""
    lines = [TEXT[i % len(TEXT)] if i % 7 else "" for i in range(2300)]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": line + "\n"}) + "\n" for line in lines))
    vocabulary = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", files / "gpt2-vocab.json", "--merge-file", files / "gpt2-merges.txt"]
    run("preprocess", "--input", "t.jsonl", "--output-prefix", "rows", *vocabulary, cwd=tmp_path)
    rows = tokens_of(tmp_path / "rows_text_document")
    assert len(rows) == 2300
    expected = []
    for first in range(0, 2300, 1000):
        group = [token for row in rows[first:first + 1000] for token in row]
        expected += [group[i:i + 64] for i in range(0, len(group) - 63, 64)]
    for name in ("t.txt", "t.jsonl"):
        run("preprocess", "--input", name, "--output-prefix", name, "--block-size", 64, "--workers", 3, *vocabulary, cwd=tmp_path)
        assert tokens_of(tmp_path / f"{name}_text_document") == expected
    run("preprocess", "--input", "t.txt", "--output-prefix", "lines", *vocabulary, cwd=tmp_path)
    assert tokens_of(tmp_path / "lines_text_document") == [row for row, line in zip(rows, lines) if line], "blank lines are none"


@pytest.mark.skipif(not os.environ.get("TERATRON_TEST_DATA"), reason="TERATRON_TEST_DATA is not set")
def test_blocks_of_wikitext(tmp_path):
    """Counts of a dataset in the form of WikiText-2, whose blank rows are empty, by Hugging Face's tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    data = Path(os.environ["TERATRON_TEST_DATA"])
    gpt2 = tokenizers.ByteLevelBPETokenizer(str(data / "gpt2-vocab.json"), str(data / "gpt2-merges.txt"))
    (tmp_path / "wikitext").mkdir()
    expected = {}
    for split, name in (("valid", "wiki.train.raw"), ("test", "wiki.valid.raw")):
        text = (data / f"wikitext2-{split}.txt").read_text()
        (tmp_path / "wikitext" / name).write_text(text)
        rows = [row if row.strip() else "" for row in text.splitlines(keepends=True)]
        lengths = [len(encoded.ids) for encoded in gpt2.encode_batch(rows)]
        expected[name] = sum(sum(lengths[i:i + 1000]) // 1024 for i in range(0, len(rows), 1000))
    done = run("pretrain", "gpt", "--model_type", "gpt2", "--vocab-file", data / "gpt2-vocab.json", "--merge-file",
               data / "gpt2-merges.txt", "--dataset_name", "wikitext", "--block_size", "1024", "--micro-batch-size", "1",
               "--train-iters", "1", "--lr", "1", "--tensor-model-parallel-size", "2", cwd=tmp_path, code=2)
    for name, blocks in expected.items():
        assert f"{name}: {blocks} blocks of 1024 tokens" in done.stderr, done.stderr
