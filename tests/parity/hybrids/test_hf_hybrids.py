"""Models with layers of Mamba-2 in and out of the built program, against `transformers`.

TERATRON_BINARY names the program.
"""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import test_hf_generation as generation  # noqa: E402
from test_hf_conversion import check_logits, random_model, run, torch  # noqa: E402


@pytest.mark.parametrize("name", ["mamba2-limits", "nemotron_h-moe", "bamba"])
def test_greedy_texts_of_a_batch(name, tmp_path):
    """Those of whole forwards: in cached steps of one token transformers forgets limits of time steps."""
    model = random_model(name)
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = None
    model.save_pretrained(tmp_path / "in")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    lines = [{"tokens": prompt, "max_new_tokens": generation.NEW, "top_k": 1} for prompt in generation.PROMPTS]
    for prompt, answer in zip(generation.PROMPTS, generation.answers(tmp_path, tmp_path / "ckpt", lines)):
        ids = list(prompt)
        for token in answer["tokens"]:
            with torch.no_grad():
                assert int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()) == token
            ids.append(token)
        assert len(answer["tokens"]) == generation.NEW


def test_files_of_older_releases_are_read(tmp_path):
    """A pattern in place of the types, the bare word Infinity, old names of layer types."""
    model = random_model("nemotron_h")
    model.save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    text = file.read_text().replace('{\n      "__float__": "Infinity"\n    }', "Infinity")
    assert "__float__" not in text
    types = text[text.index('"layers_block_type"'):]
    types = types[:types.index("]") + 1]
    for number, now in enumerate(['"hybrid_override_pattern": "M-*M"', types.replace("linear_attention", "mamba").replace("full_", "")]):
        file.write_text(text.replace(types, now))
        run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / f"ckpt{number}")
    for number in range(2):
        (tmp_path / "ckpt").unlink(missing_ok=True)
        (tmp_path / "ckpt").symlink_to(tmp_path / f"ckpt{number}")
        check_logits(model, tmp_path)
