"""Tokens that end an answer, of generation_config.json, config.json and the tokenizer: as `transformers` ends its texts; and
what an exported folder says of them.

TERATRON_BINARY names the program.
"""
import json

import pytest
from test_hf_conversion import random_model, run, torch, transformers

PROMPT = [5, 17, 3]
NEW = 24


def greedy(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        out = model.generate(torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
                             max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    return out[0, len(PROMPT):].tolist()


def answer(folder, *flags, **fields):
    (folder / "in.jsonl").write_text(json.dumps({"tokens": PROMPT, "top_k": 1, "max_new_tokens": NEW} | fields) + "\n")
    (folder / "out.jsonl").unlink(missing_ok=True)
    run("generate", *flags, "--device", "cpu", "--input", folder / "in.jsonl", "--output", folder / "out.jsonl")
    return json.loads((folder / "out.jsonl").read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model, and a text of it that nothing ends."""
    folder = tmp_path_factory.mktemp("model")
    model = random_model("llama-gqa")
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    model.save_pretrained(folder)
    return folder, greedy(folder)


def with_ends(model, folder, config, generation):
    folder.mkdir()
    for file in model[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name, ends in (("config.json", config), ("generation_config.json", generation)):
        said = json.loads((folder / name).read_text()) | {"eos_token_id": ends}
        (folder / name).write_text(json.dumps(said))
    if generation == "no file":
        (folder / "generation_config.json").unlink()
    return folder


def test_all_of_them_end_an_answer(model, tmp_path):
    text = model[1]
    late, early, absent = text[12], text[7], next(i for i in range(100) if i not in text)
    for i, (config, generation) in enumerate([(late, [absent, early]), ([late, early], "no file"), (early, "no file"),
                                              (None, early), (early, None), ([early, late], [absent, late])]):
        folder = with_ends(model, tmp_path / str(i), config, generation)
        run("ckpt", "convert", "--from-hf", folder, "--save", tmp_path / f"ckpt{i}")
        expected = greedy(folder)
        for flags in (["--hf", folder], ["--load", tmp_path / f"ckpt{i}"]):
            assert answer(tmp_path, *flags)["tokens"] == expected, (config, generation)
        # Another token, alone.
        assert answer(tmp_path, "--hf", folder, stop_token=text[3])["tokens"] == text[:text.index(text[3]) + 1]
        run("ckpt", "convert", "--to-hf", tmp_path / f"out{i}", "--load", tmp_path / f"ckpt{i}")
        exported = json.loads((tmp_path / f"out{i}" / "config.json").read_text())
        # There is no tokenizer, with which generation_config.json would come along.
        assert exported["eos_token_id"] == (config if generation in ("no file", None) else generation)
        assert exported["bos_token_id"] == json.loads((folder / "config.json").read_text())["bos_token_id"]


def test_exported_ids_are_those_of_the_imported_folder(model, tmp_path):
    """config.json names other tokens than the tokenizer."""
    folder = with_ends(model, tmp_path / "in", [50, 60], [60, 70])
    vocab = {chr(33 + i): i for i in range(94)} | {"<|end|>": 94}
    tokenizer = {"added_tokens": [{"id": 94, "content": "<|end|>", "special": True}], "decoder": {"type": "ByteLevel"},
                 "pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    run("ckpt", "convert", "--from-hf", folder, "--save", tmp_path / "ckpt")
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    exported = json.loads((tmp_path / "out" / "config.json").read_text())
    assert exported["eos_token_id"] == [50, 60] and exported["bos_token_id"] == 1
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [60, 70]
    # The tokenizer's token ends an answer, too.
    ends = answer(tmp_path, "--load", tmp_path / "ckpt", temperature=30.0, top_k=0, max_new_tokens=50, num_return_sequences=16)
    assert {choice["tokens"][-1] for choice in ends["choices"] if choice["finish_reason"] == "stop"} <= {60, 70, 94}
    assert not {60, 70, 94} & {token for choice in ends["choices"] for token in choice["tokens"][:-1]}


def test_an_end_that_is_no_id_is_an_error(model, tmp_path):
    folder = with_ends(model, tmp_path / "in", 3, "end")
    said = run("generate", "--hf", folder, "--prompt", "1", "--device", "cpu", code=3)
    assert "generation_config.json" in said and "eos_token_id" in said
