"""Input files that are pipes or devices, lines without an end, and JSON with wrong numbers and types."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from program import BINARY, TINY, VOCABULARY, each, environment, message, needs_binary, teratron
from test_foreign_weights import HF_CONFIG

pytestmark = needs_binary


def inputs(file, run, lines):
    """Every way to name an input file, with the exit code."""
    text = ["preprocess", "--output-prefix", file.parent / "out"]
    tokenizer = [*text, "--input", lines, "--tokenizer-type"]
    job = ["pretrain", "gpt", *TINY, *VOCABULARY, "--train-iters", "1"]
    return [([*text, *VOCABULARY, "--input", file], 3),
            ([*tokenizer, "GPT2BPETokenizer", "--vocab-file", file, "--merge-file", file], 3),
            ([*tokenizer, "HuggingFaceTokenizer", "--tokenizer-model", file], 3),
            ([*tokenizer, "SentencePieceTokenizer", "--tokenizer-model", file], 3),
            ([*tokenizer, "TikTokenizer", "--tokenizer-model", file], 3),
            ([*tokenizer, "BertWordPieceCase", "--vocab-file", file], 3),
            ([*job, "--mock-data", "--config-file", file], 2), ([*job, "--mock-data", "--hf-config", file], 2),
            ([*job, "--data-args-path", file], 3), ([*job, "--per-split-data-args-path", file], 3),
            (["tokenizer", "train", "--input", file, "--vocab-size", "300", "--output", file.parent / "bpe"], 3),
            (["generate", "--load", run, "--sample-input-file", file], 2),
            (["logits", "--load", run, "--input", file, "--output", file.parent / "logits"], 3)]


def test_pipes_and_devices_are_refused_at_once(tmp_path, unbroken):
    """Nobody writes into the pipe: opening it as usual would never return."""
    lines, pipe = tmp_path / "lines.jsonl", tmp_path / "pipe"
    lines.write_text('{"text": "1 2"}\n')
    os.mkfifo(pipe)

    def check(case, folder):
        args, code = case
        message(teratron(*args, code=code), "not a regular file")

    each([case for file in (pipe, Path("/dev/zero")) for case in inputs(file, unbroken, lines)], check, tmp_path)


def test_pipe_as_dataset_or_weights(tmp_path):
    os.mkfifo(tmp_path / "data.idx")
    (tmp_path / "data.bin").write_bytes(b"")
    job = ["pretrain", "gpt", *TINY, *VOCABULARY, "--train-iters", "1", "--data-path", tmp_path / "data"]
    message(teratron(*job, code=3), "data.idx", "not a regular file")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(HF_CONFIG))
    os.mkfifo(tmp_path / "hf" / "model.safetensors.index.json")
    message(teratron("ckpt", "convert", "--from-hf", tmp_path / "hf", "--save", tmp_path / "out", code=4), "index.json",
            "not a regular file")


@pytest.mark.parametrize("args", [["preprocess", "--input", "-", "--output-prefix", "out"], ["tokenizer", "encode"],
                                  ["tokenizer", "decode"]])
def test_endless_line_on_standard_input(tmp_path, args):
    """The limit holds while the line is read: it has no end."""
    with open("/dev/zero") as endless:
        result = subprocess.run(["prlimit", f"--as={8 << 30}", BINARY, *args, *VOCABULARY], stdin=endless, cwd=tmp_path,
                                capture_output=True, text=True, timeout=60, env=environment())
    assert result.returncode == 3, result.stderr
    message(result, "longer than 268435456 bytes")


def test_words_of_libraries_are_not_shown(tmp_path):
    """Numbers and types that JSON libraries reject, in our words."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"text": "1 2"}\n')
    word = ["preprocess", "--input", lines, "--output-prefix", tmp_path / "out", "--tokenizer-type"]
    ways = [("config.json", ["ckpt", "convert", "--from-hf", ".", "--save", tmp_path / "save"], 4),
            ("vocab.json", [*word, "GPT2BPETokenizer", "--vocab-file", "vocab.json", "--merge-file", lines], 3),
            ("tokenizer.json", [*word, "HuggingFaceTokenizer", "--tokenizer-model", "tokenizer.json"], 3),
            ("tiktoken.json", [*word, "TikTokenizer", "--tokenizer-model", "tiktoken.json"], 3),
            ("splits.json", ["pretrain", "gpt", *TINY, *VOCABULARY, "--train-iters", "1", "--per-split-data-args-path",
                             "splits.json"], 3)]
    library = ["exception", "nlohmann", "simdjson", "syntax error", "parsing", "literal", "_error", "The JSON", "improper",
               "type must be"]

    def check(case, folder):
        (file, args, code), text = case
        (folder / file).write_text(text)
        args = [folder if arg == "." else folder / file if arg == file else arg for arg in args]
        found = message(teratron(*args, code=code), file)
        assert not [words for words in library if words in found], found

    texts = ['{"a": 1e999}', '{"a": 01}', '{"a": nul}', "[1]", "5", "{", '{"train": 5, "vocab_size": "x", "model_type": 5}']
    each([(way, text) for way in ways for text in texts], check, tmp_path)
