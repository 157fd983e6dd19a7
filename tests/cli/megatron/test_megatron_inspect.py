"""What `ckpt` shows and checks of Megatron-LM's folders, and conversion between two other formats."""

import pytest

from megatron_files import FIXTURES, unpack
from program import message, needs_binary, teratron
from test_megatron_checkpoints import convert, model, save
from test_megatron_torch_dist import save as save_dist

pytestmark = needs_binary


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    unpack("legacy.zip", folder)
    return unpack("torch_dist.zip", folder)


def test_inspect_says_what_is_there(fixtures):
    text = teratron("ckpt", "inspect", fixtures / "gpt_a/tp2_pp2").stdout
    for part in ("torch, version 3, 2 tensor ranks, 2 pipeline stages", "iteration     50", '"num_attention_heads": 4',
                 '"consumed_train_samples": 100', "--from-megatron"):
        assert part in text, part
    text = teratron("ckpt", "inspect", "--tensors", fixtures / "gpt_a_HEAD_tp2").stdout
    assert "torch_dist" in text and "decoder.layers.1.mlp.linear_fc2.weight" in text and "[16, 64]" in text
    assert "version 0" in teratron("ckpt", "inspect", FIXTURES / "gpt_a_v0_ngc.zip").stdout


def test_the_structure_is_printed_without_a_conversion(fixtures):
    text = teratron("ckpt", "convert", "--print-checkpoint-structure", "--from-megatron", fixtures / "gpt_a/tp2_pp2").stdout
    assert "# model" in text and "..# language_model" in text and "mp_rank_00_001" in text
    line = next(line for line in text.splitlines() if "layers.0.mlp.dense_h_to_4h.weight" in line)
    assert line.startswith("......# layers.0") and line.endswith(": torch.Size([32, 16])")
    text = teratron("ckpt", "convert", "--print-checkpoint-structure", "--from-megatron", fixtures / "bert_a_HEAD_tp2").stdout
    assert "torch.Size([2, 48, 16])" in text and "# args" in text


@pytest.mark.parametrize("write", [save, save_dist])
def test_verify_finds_every_damaged_byte_of_a_tensor(tmp_path, write):
    folder = write(tmp_path / "in", model())
    assert "all checksums match" in teratron("ckpt", "verify", folder).stdout
    file = next(path for path in folder.rglob("*") if path.suffix in (".distcp", ".pt") and path.name != "common.pt")
    data = bytearray(file.read_bytes())
    weight = model()["decoder.layers.2.mlp.linear_fc1.weight"].numpy().tobytes()
    data[data.find(weight[:64]) + 40] ^= 1
    file.write_bytes(data)
    message(teratron("ckpt", "verify", folder, code=4), "damaged")


def test_files_without_checksums_are_said_to_have_none(tmp_path):
    folder = save(tmp_path / "in", model(), zipped=False)
    assert "no checksums" in teratron("ckpt", "verify", folder).stdout


def test_one_command_converts_to_transformers(tmp_path):
    """Of a model that transformers has: GPT-2."""
    folder = save_dist(tmp_path / "in", model(), ranks=2, args={"bias_gelu_fusion": True})
    out = tmp_path / "out"
    teratron("ckpt", "convert", "--from-megatron", folder, "--ckpt-step", 7, "--to-hf", out, "--max-shard-size", "200MB",
             "--target-params-dtype", "bf16")
    assert (out / "config.json").exists() and list(out.glob("*.safetensors"))
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}
    message(teratron("ckpt", "convert", "--from-megatron", folder, "--to-hf", out, code=2), "not empty")
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}
    back = tmp_path / "back"
    teratron("ckpt", "convert", "--from-megatron", folder, "--to-megatron", back, "--target-tensor-parallel-size", 2)
    assert (back / "iter_0000007/mp_rank_01/model_optim_rng.pt").exists()
    message(teratron("ckpt", "convert", "--from-megatron", folder, code=2), "--save", "--to-megatron")
    convert(back, tmp_path / "again")
