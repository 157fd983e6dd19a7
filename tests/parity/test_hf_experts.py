"""Experts of Hugging Face models in files that hold all experts of a layer in one tensor, as transformers 5 does in memory.

TERATRON_BINARY names the program.
"""
import pytest
from safetensors.torch import load_file, save_file
from test_hf_conversion import assert_same, check_logits, random_model, run


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe"])
def test_experts_as_transformers_holds_them(name, tmp_path):
    """Files of a state dict: one tensor for all experts of a layer."""
    model = random_model(name)
    model.save_pretrained(tmp_path / "in")
    state = model.state_dict()
    fused = [key for key in state if key.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert fused and all(state[key].dim() == 3 for key in fused), list(state)
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "apart")
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "in" / "model.safetensors")
    run("ckpt", "convert", "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    assert_same(*(load_file(tmp_path / folder / "iter_0000000" / "shard-00000.safetensors") for folder in ("apart", "ckpt")))
    check_logits(model, tmp_path)
