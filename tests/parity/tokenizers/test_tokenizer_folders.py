"""Hugging Face folders with vocab.json and merges.txt and without tokenizer.json against AutoTokenizer of transformers.

Environment: tokenizer_program.py.
"""
import json
import shutil
import subprocess

import pytest

transformers = pytest.importorskip("transformers")

from tokenizer_program import BINARY, DATA, assert_same, encode_lines, random_strings, run  # noqa: E402

LINES = [*random_strings(300, seed=8), "a<|im_end|>b <|endoftext|>", "12345 it's IT'S", "e\u0301", "<tool> x<|pad|>"]
ADDED = {str(50300 + i): {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                          "special": content != "<tool>"} for i, content in enumerate(["<|im_start|>", "<|im_end|>", "<tool>"])}
QWEN = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None,
        "unk_token": None}
FOLDERS = {
    "qwen2": {"tokenizer_config.json": QWEN | {"added_tokens_decoder": ADDED}},
    "qwen2_alone": {"config.json": {"model_type": "qwen2"}},
    "qwen3_moe_alone": {"config.json": {"model_type": "qwen3_moe"}},
    "qwen2_new_token": {"tokenizer_config.json": {"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|im_end|>",
                                                  "pad_token": "<|pad|>"}},
    "gpt2": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
    "gpt2_alone": {"config.json": {"model_type": "gpt2"}},
}


def folder_of(files, folder, with_end_of_text=True):
    vocab = json.loads((DATA / "gpt2-vocab.json").read_text(encoding="utf-8"))
    if not with_end_of_text:
        del vocab["<|endoftext|>"]
    # Ids of added tokens follow those of the vocabulary.
    vocab |= {f"unused{i}": i for i in range(len(vocab), 50300)} if "added_tokens_decoder" in json.dumps(files) else {}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    shutil.copyfile(DATA / "gpt2-merges.txt", folder / "merges.txt")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(folder)]


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("with_end_of_text", [True, False])
def test_folders_without_tokenizer_json(name, with_end_of_text, tmp_path):
    flags = folder_of(FOLDERS[name], tmp_path, with_end_of_text)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert_same(LINES, encode_lines(flags, LINES), [theirs(line).input_ids for line in LINES])
    info = run("info", flags, b"").decode()
    assert f"vocabulary: {len(theirs)}" in info
    assert f"eos: {theirs.eos_token_id}" in info
    assert (theirs.pad_token_id is None) == ("pad:" not in info)


def test_a_folder_that_says_nothing_of_its_words_is_refused(tmp_path):
    for files, word in [({}, "vocab.json and merges.txt"), ({"config.json": {"model_type": "roberta"}}, "vocab.json"),
                        ({"tokenizer_config.json": {"tokenizer_class": "CodeGenTokenizer"}}, "CodeGenTokenizer")]:
        for old in ("config.json", "tokenizer_config.json"):
            (tmp_path / old).unlink(missing_ok=True)
        flags = folder_of(files, tmp_path)
        done = subprocess.run([BINARY, "tokenizer", "encode", *flags], input=b"a\n", capture_output=True, check=False)
        assert done.returncode == 3 and word in done.stderr.decode(), done.stderr.decode()
