"""T5 without a tokenizer: decoders begin and answers end with the ids of generation_config.json or config.json, as those of
`transformers`; exports keep them.

TERATRON_BINARY names the program.
"""
import json

import pytest
import test_hf_t5
from test_hf_conversion import run, torch, transformers

SOURCES = [[5, 17, 3], [60], [9, 8, 7, 6, 5, 4, 3, 2, 1, 90, 33, 41]]
NEW = 12


def greedy(folder, source):
    """Without a cache: transformers 5 makes that of a decoder with as many layers as the encoder has."""
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
    with torch.no_grad():
        return model.generate(torch.tensor([source]), max_new_tokens=NEW, do_sample=False, use_cache=False)[0].tolist()


def answers(folder, *flags, **fields):
    lines = [{"encoder_tokens": source, "top_k": 1, "max_new_tokens": NEW} | fields for source in SOURCES]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "out.jsonl").unlink(missing_ok=True)
    run("generate", *flags, "--device", "cpu", "--input", folder / "in.jsonl", "--output", folder / "out.jsonl")
    return [json.loads(line)["tokens"] for line in (folder / "out.jsonl").read_text().splitlines()]


def say(folder, name, **ids):
    """Ids in place of all that the file names; None: no such file."""
    said = json.loads((folder / name).read_text())
    kept = {key: value for key, value in said.items() if not key.endswith("_token_id")}
    (folder / name).write_text(json.dumps(kept | ids))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    test_hf_t5.random_model("v1.0").save_pretrained(folder)
    return folder


CONFIGURED = [  # config.json, generation_config.json
    (dict(decoder_start_token_id=0, eos_token_id=1, pad_token_id=0), None),
    (dict(decoder_start_token_id=44, eos_token_id=[1, 9], pad_token_id=0), None),
    (dict(decoder_start_token_id=44, pad_token_id=3), dict(decoder_start_token_id=13, eos_token_id=[8, 77], pad_token_id=3)),
    (dict(bos_token_id=21, eos_token_id=None, pad_token_id=0), None),
    (dict(decoder_start_token_id=44), dict(bos_token_id=30, eos_token_id=2, pad_token_id=0)),
]


@pytest.mark.parametrize("config, generation", CONFIGURED)
def test_a_decoder_begins_as_configured(model, tmp_path, config, generation):
    folder = tmp_path / "in"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    say(folder, "config.json", **config)
    if generation:
        say(folder, "generation_config.json", **generation)
    else:
        (folder / "generation_config.json").unlink()
    texts = [greedy(folder, source) for source in SOURCES]
    # One of the texts ends early.
    ends = texts[0][4]
    said = generation or config
    say(folder, "generation_config.json" if generation else "config.json", **said | {"eos_token_id": [ends, 100]})
    texts = [greedy(folder, source) for source in SOURCES]
    assert len(texts[0]) < NEW
    run("ckpt", "convert", "--from-hf", folder, "--save", tmp_path / "ckpt")
    for flags in (["--hf", folder], ["--load", tmp_path / "ckpt"]):
        assert answers(tmp_path, *flags) == [text[1:] for text in texts]
    # A request may begin otherwise.
    assert answers(tmp_path, "--hf", folder, tokens=[texts[0][0], 7]) != [text[1:] for text in texts]
    run("ckpt", "convert", "--to-hf", tmp_path / "out", "--load", tmp_path / "ckpt")
    assert [greedy(tmp_path / "out", source) for source in SOURCES] == texts


def test_padding_is_the_last_choice(model, tmp_path):
    """Published T5s begin with it; transformers' own model asks for more."""
    folder = tmp_path / "in"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    say(folder, "config.json", pad_token_id=5, eos_token_id=None)
    (folder / "generation_config.json").unlink()
    assert answers(tmp_path, "--hf", folder) == answers(tmp_path, "--hf", folder, tokens=[5])
    say(folder, "config.json", decoder_start_token_id=[0, 1])
    assert "decoder_start_token_id has several ids" in run("generate", "--hf", folder, "--num-samples", 1, "--device", "cpu", code=3)
