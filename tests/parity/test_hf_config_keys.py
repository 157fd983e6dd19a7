"""Keys of config.json that are left out or contradict each other, against `transformers`.

TERATRON_BINARY names the program.
"""
import json

import pytest

from test_hf_conversion import check_logits, random_model, run

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name, keys", [("mixtral", ["rope_parameters", "rms_norm_eps"]), ("gpt_neox", ["rope_parameters"])])
def test_keys_left_out_are_those_of_the_class(name, keys, tmp_path):
    """Mixtral's rotary base is 1e6, which changes logits by several units."""
    random_model(name).save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key not in keys}))
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    check_logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in").eval(), tmp_path)


def test_more_experts_for_a_token_than_there_are(tmp_path):
    random_model("mixtral").save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_experts_per_tok": 9}))
    (tmp_path / "ids.txt").write_text("1 2 3\n")
    for command in (["ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt"],
                    ["logits", "--hf", tmp_path / "in", "--input", tmp_path / "ids.txt", "--output", tmp_path / "out.safetensors"]):
        said = run(*command, code=2)
        assert str(file) in said and "'num_experts_per_tok' = 9 is more than 'num_local_experts' = 4" in said
