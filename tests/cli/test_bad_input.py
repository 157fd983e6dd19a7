"""Wrong flags, data, texts, tokenizers and foreign weights: one message with what, where and what to do; no trace."""

import json
import os
import struct
import subprocess

import numpy as np
import pytest
import torch
from program import BINARY, MOCK, TINY, VOCABULARY, each, message, needs_binary, steps, teratron, train
from safetensors.torch import save_file

pytestmark = needs_binary


# ---- flags ----

def test_unknown_flag():
    message(train(*MOCK, "--train-iters", "1", "--num-layer", "3", code=2), "--num-layer", "did you mean --num-layers?")


def test_several_wrong_flags_are_told_together():
    text = message(train(*MOCK, "--train-iters", "many", "--hiden-size", "3", "--micro-batch-size", "0",
                         "--lr-decay-style", "cosin", "--clip-grad", "x", code=2),
                   "--train-iters", "many", "--hiden-size", "--hidden-size?", "--micro-batch-size", "cosin", "cosine",
                   "--clip-grad")
    assert len(text.splitlines()) == 5, text


def test_several_contradictions_are_told_together():
    text = message(train(*MOCK, "--train-iters", "5", "--hidden-size", "15", "--bf16", "--fp16", "--global-batch-size",
                         "3", code=2), "hidden", "15", "bf16", "fp16", "global")
    assert len(text.splitlines()) >= 3, text


@pytest.mark.parametrize("flags", [["--fp8-recipe", "mxfp8"], ["--fp8-recipe", "mxfp8", "--cuda-graph-impl", "full_iteration"]])
def test_what_is_not_built_yet_is_told_without_what_follows_from_it(flags):
    text = message(train(*MOCK, "--train-iters", "1", *flags, code=2))
    assert len(text.splitlines()) == len(flags) // 2, text
    assert text.count("is not supported yet. ") == len(flags) // 2, text


@pytest.mark.parametrize("args,says", [("pretrian", "pretrian"), ("pretrain bort", "bort"), ("ckpt convrt", "convrt"),
                                       ("tokenizer trian", "trian"), ("data verfy", "verfy"), ("env --bogus", "--bogus"),
                                       ("logits --input ids --output out", "--load"), ("generate", "--load"),
                                       ("preprocess --input a --output-prefix b", "--tokenizer-type"),
                                       ("bench --steps 1.5", "steps = '1.5' is not a whole number"),
                                       ("tokenizer encode --tokenizer-type NullTokenizer --offsets --timing", "--timing")])
def test_unknown_or_incomplete_command(args, says):
    message(teratron(*args.split(), code=2), says)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu():
    message(train(*MOCK, "--train-iters", "1", "--device", "cuda", code=2), "no GPU is visible", "--device cpu")


def test_epochs_smaller_than_a_step_take_one(tmp_path):
    prefix = dataset(tmp_path, TOKENS[:20])
    done = train(*TINY, *VOCABULARY, "--data-path", prefix, "--split", "1,0,0", "--num-train-epochs", "1",
                 "--global-batch-size", "8", "--data-cache-path", tmp_path / "cache")
    assert "iteration        1/       1" in done.stdout


def test_a_schedule_too_large_to_draw():
    message(teratron("plan", "gpt", "--show-schedule", "--pp", "8", "--num-micro-batches", "1000000", code=2),
            "too large to draw", "fewer")


@pytest.mark.parametrize("args,meant", [("pretrian gpt", ["pretrain"]), ("ckpt convrt", ["convert"]),
                                        ("preprocess --inptu a --output_prefx b", ["--input", "--output-prefix"]),
                                        ("tokenizer encode --vocab-fil v", ["--vocab-file"]),
                                        ("data indices --datapath x", ["--data-path"])])
def test_what_may_have_been_meant(args, meant):
    message(teratron(*args.split(), code=2), *[f"did you mean {name}?" for name in meant])


# ---- data ----

def dataset(folder, tokens, name="data"):
    prefix = folder / name
    np.asarray(tokens).astype("<u2").tofile(f"{prefix}.bin")
    index = struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iq", len(tokens), 0) + struct.pack("<qq", 0, 1)
    (folder / f"{name}.idx").write_bytes(b"MMIDIDX\x00\x00" + index)
    return prefix


def train_on(*prefixes, more=(), code=3):
    flags = [*TINY, *VOCABULARY, "--data-path", *prefixes, "--split", "1,0,0", "--train-iters", "4"]
    return train(*flags, "--data-cache-path", prefixes[0].parent / "cache", *more, code=code)


TOKENS = np.arange(500) % 60


def test_sound_data_trains_on_beyond_its_first_plan(tmp_path):
    prefix = dataset(tmp_path, TOKENS)
    folder = ["--save", tmp_path / "run", "--load", tmp_path / "run"]
    train_on(prefix, more=folder, code=0)
    train_on(prefix, more=[*folder, "--train-iters", "90", "--override-opt-param-scheduler"], code=0)
    assert steps(tmp_path / "run") == list(range(1, 91))


def test_missing_data(tmp_path):
    message(train_on(tmp_path / "none"), tmp_path / "none", "no such file")


def test_damaged_index(tmp_path):
    def check(damage, folder):
        prefix = dataset(folder, TOKENS)
        index = folder / "data.idx"
        index.write_bytes(damage(index.read_bytes()))
        message(train_on(prefix), f"{prefix}.idx")

    each([lambda data: data[:-9], lambda data: b"", lambda data: bytes(200), lambda data: b"TNTIDX\x00\x00" + data[9:],
          lambda data: data[:18] + b"\xff" * 8 + data[26:]], check, tmp_path)


def test_short_tokens(tmp_path):
    prefix = dataset(tmp_path, TOKENS)
    os.truncate(f"{prefix}.bin", 990)
    message(train_on(prefix), prefix, "990", "1000")


def test_token_beyond_the_vocabulary(tmp_path):
    tokens = TOKENS.copy()
    tokens[137] = 999
    prefix = dataset(tmp_path, tokens)
    message(train_on(prefix, more=["--train-iters", "40"]), prefix, "999", "document 0", "137")


def test_no_tokens(tmp_path):
    prefix = dataset(tmp_path, [])
    message(train_on(prefix), prefix, "not enough")


def test_no_documents(tmp_path):
    (tmp_path / "in.jsonl").write_text("")
    preprocess(tmp_path, *VOCABULARY, code=0)
    message(train_on(tmp_path / "out_text_document"), "the dataset is empty")


def test_data_that_ends_too_early(tmp_path):
    """Without weights each data set is read once."""
    first, second = dataset(tmp_path, TOKENS, "first"), dataset(tmp_path, TOKENS, "second")
    message(train_on(first, second, more=["--train-iters", "90"]), "the train split ends after sample")


# ---- text and tokenizers ----

def preprocess(folder, *args, code=3):
    return teratron("preprocess", "--input", folder / "in.jsonl", "--output-prefix", folder / "out", *args, code=code)


LINES = [b'{"text": "1 2', b'{"text": "\xff\xfe"}', b'{"txt": "1"}', b'{"text": 5}', b"[]",
         b'{"text": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"]


def test_broken_line(tmp_path):
    def check(line, folder):
        (folder / "in.jsonl").write_bytes(b'{"text": "1 2"}\n' * 2 + line + b'\n{"text": "3"}\n')
        message(preprocess(folder, *VOCABULARY), f"{folder / 'in.jsonl'}:3")
        assert not list(folder.glob("out*document*")), "nothing half-made is left under the final name"

    each(LINES, check, tmp_path)
    (tmp_path / "in.jsonl").write_bytes(b"\n".join([b'{"text": "1 2"}', *LINES, b'{"text": "3"}']))
    message(preprocess(tmp_path, *VOCABULARY, "--max-bad", str(len(LINES) - 1)), "in.jsonl:")
    preprocess(tmp_path, *VOCABULARY, "--max-bad", str(len(LINES)), code=0)
    assert np.fromfile(tmp_path / "out_text_document.bin", dtype="<u2").tolist() == [1, 2, 3]


def test_missing_text(tmp_path):
    message(preprocess(tmp_path, *VOCABULARY), tmp_path / "in.jsonl")


def test_missing_tokenizer_file(tmp_path):
    def check(flags, folder):
        (folder / "in.jsonl").write_text('{"text": "a"}\n')
        message(preprocess(folder, "--tokenizer-type", *flags), "none.json")

    each([["HuggingFaceTokenizer", "--tokenizer-model", "none.json"],
          ["GPT2BPETokenizer", "--vocab-file", "none.json", "--merge-file", "none.txt"]], check, tmp_path)


def tokenizer_json(vocabulary, merges=(), **more):
    model = {"type": "BPE", "vocab": vocabulary, "merges": list(merges)}
    return json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
                       "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                         "use_regex": True}, "decoder": {"type": "ByteLevel"}, "model": model, **more})


TOKENIZERS = {
    "empty": "", "cut": tokenizer_json({"a": 0})[:-20], "deep": "[" * 100_000 + "]" * 100_000, "no model": "{}",
    "unknown merge": tokenizer_json({"a": 0, "b": 1}, ["a q"]),
    "merge without result": tokenizer_json({"a": 0, "b": 1}, ["a b"]),
    "duplicate id": tokenizer_json({"a": 0, "b": 0}), "negative id": tokenizer_json({"a": -1}),
    "huge id": tokenizer_json({"a": 2**40}),
    "bad regex": tokenizer_json({"a": 0}, pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a"},
                                                         "behavior": "Isolated", "invert": False}),
}


def test_hostile_tokenizer(tmp_path):
    def check(name, folder):
        (folder / "in.jsonl").write_text('{"text": "a"}\n')
        (folder / "tokenizer.json").write_text(TOKENIZERS[name])
        message(preprocess(folder, "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
                           folder / "tokenizer.json"), "tokenizer.json")

    each(TOKENIZERS, check, tmp_path)


# ---- a trained model in use ----

def test_logits_of_wrong_ids(tmp_path, unbroken):
    def check(ids, folder):
        (folder / "ids.txt").write_text(f"1 2 3\n{ids}\n")
        result = teratron("logits", "--load", unbroken, "--input", folder / "ids.txt", "--output",
                          folder / "out.safetensors", code=3)
        message(result, ids.split()[-1], f"{folder / 'ids.txt'}:2")
        assert not (folder / "out.safetensors").exists()

    each(["1 2 61", "1 -1", "1 x", "1 99999999999999999999"], check, tmp_path)


@pytest.mark.parametrize("flags,says", [(["--temperature", "0"], ["--temperature"]),
                                        (["--top-k", "3", "--top-p", "0.5"], ["--top-k", "--top-p"]),
                                        (["--top-p", "1.5"], ["--top-p"]),
                                        (["--num-samples", "2"], ["--num-samples", "prompts are given"])])
def test_generate_with_contradictions(unbroken, flags, says):
    command = ["generate", "--load", unbroken, "--prompt", "1 2", "--max-new-tokens", "2", "--device", "cpu"]
    message(teratron(*command, *flags, code=2), *says)


def test_unwritable_output(tmp_path, unbroken):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "ids.txt").write_text("1 2\n")
    (tmp_path / "in.jsonl").write_text('{"text": "1 2"}\n')
    output = tmp_path / "file" / "out"

    def check(args, _):
        message(teratron(*args, output, code=2), output.parent)

    each([["logits", "--load", unbroken, "--input", tmp_path / "ids.txt", "--output"],
          ["generate", "--load", unbroken, "--prompt", "1", "--max-new-tokens", "2", "--sample-output-file"],
          ["preprocess", "--input", tmp_path / "in.jsonl", *VOCABULARY, "--output-prefix"],
          ["pretrain", "gpt", *MOCK, "--train-iters", "1", "--run-dir"]], check, tmp_path)


def test_generated_ids_are_apart_from_the_prompt(unbroken):
    result = teratron("generate", "--load", unbroken, "--prompt", "1 2", "--max-new-tokens", "2", "--device", "cpu",
                      "--greedy")
    assert result.stdout.split()[:2] == ["1", "2"] and len(result.stdout.split()) == 4


def test_samples_without_a_prompt(tmp_path, unbroken):
    result = teratron("generate", "--load", unbroken, "--num-samples", "3", "--max-new-tokens", "5", "--device", "cpu",
                      "--genfile", tmp_path / "texts")
    samples = [json.loads(line) for line in (tmp_path / "texts").read_text().splitlines()]
    assert len(samples) == 3 and len({sample["text"] for sample in samples}) > 1, samples
    for sample in samples:
        ids = sample["text"].split()
        assert sample["text"] in result.stdout and "60" not in ids, "the end of a document is not text"
        assert len(ids) == sample["length"] and sample["finished"] == (len(ids) < 5)


def test_generate_without_a_checkpoint(tmp_path):
    message(teratron("generate", "--load", tmp_path / "none", "--prompt", "1", code=4), tmp_path / "none")


# ---- output ----

@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(*MOCK, "--train-iters", "1", "--save", folder)
    return folder


def test_output_that_is_no_file_is_left_alone(trained, tmp_path):
    (tmp_path / "ids").write_text("1 2 3\n")
    for device in ("/dev/full", "/dev/null"):
        before = os.stat(device).st_rdev
        message(teratron("logits", "--load", trained, "--input", tmp_path / "ids", "--output", device, code=2), device)
        message(teratron("generate", "--load", trained, "--prompt", "1", "--sample-output-file", device, code=2),
                        device)
        assert os.stat(device).st_rdev == before != 0


def test_full_output_is_an_error():
    with open("/dev/full", "w") as full:
        result = subprocess.run([BINARY, "env"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 5
    message(result, "output")


def test_more_tokens_than_positions_are_announced(trained):
    result = teratron("generate", "--load", trained, "--prompt", "1 2 3", "--max-new-tokens", "200", "--greedy")
    assert "leaves 13 of the model's 16 positions, fewer than --max-new-tokens 200" in result.stderr
    assert "notice" not in teratron("generate", "--load", trained, "--prompt", "1 2 3", "--max-new-tokens", "5").stderr


def test_flags_of_trainings_have_no_effect_and_say_so(trained, tmp_path):
    (tmp_path / "ids").write_text("1 2 3\n")
    logits = ["logits", "--load", trained, "--input", tmp_path / "ids", "--output", tmp_path / "out"]
    generate = ["generate", "--load", trained, "--prompt", "1", "--max-new-tokens", "2"]
    for command, *flag in ((logits, "--bf16"), (logits, "--top-k", "3"), (logits, "--save", tmp_path / "x"), (generate, "--lr", "1")):
        said = teratron(*command, *flag).stderr
        assert said.count(f"notice: {flag[0]} has no effect on {command[0]}\n") == 1, said
    said = teratron("launch", "--nproc-per-node", 2, "--", *generate, "--lr", "1").stderr
    assert said.count("--lr has no effect on generate") == 1, said


def test_ids_and_prompts_that_cannot_be_used(trained, tmp_path):
    def logits(text, *says):
        (tmp_path / "ids").write_text(text)
        message(teratron("logits", "--load", trained, "--input", tmp_path / "ids", "--output", tmp_path / "out",
                                 code=3), *says)
    logits("", "no token ids")
    logits("1 2\n" + "1 " * 17, "ids:2", "17 tokens", "16 positions")
    logits("1 61", "ids:1", "'61'", "[0, 61)")
    message(teratron("logits", "--load", trained, "--input", tmp_path / "none", "--output", tmp_path / "out", code=3),
                    "none", "cannot open")
    message(teratron("generate", "--load", trained, "--prompt", "", code=2), "no tokens")
    message(teratron("generate", "--load", trained, "--sample-input-file", tmp_path / "none", code=2), "prompts")
    message(teratron("pretrain", code=2), "no model")
    message(teratron("pretrain", "bort", code=2), "bort")


def test_a_checkpoint_without_optimizer_cannot_be_resumed(tmp_path):
    flags = [*MOCK, "--save", tmp_path, "--load", tmp_path]
    train(*flags, "--train-iters", "2", "--exit-interval", "1", "--no-save-optim")
    message(train(*flags, "--train-iters", "2", code=4), "optimizer", "--no-load-optim")
