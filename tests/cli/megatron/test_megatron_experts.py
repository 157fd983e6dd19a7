"""Checkpoints of Megatron-LM with experts: every way in which it names and divides them gives the model that was saved."""

import argparse
from pathlib import Path

import pytest
import torch
from program import VOCABULARY, message, needs_binary, teratron
from safetensors.torch import load_file

pytestmark = needs_binary

LAYERS, HIDDEN, EXPERTS = 4, 16, 4
MODEL = ["--num-layers", LAYERS, "--hidden-size", HIDDEN, "--num-attention-heads", "2", "--seq-length", "16",
         "--max-position-embeddings", "16", "--swiglu", "--disable-bias-linear", "--ffn-hidden-size", "40", "--hidden-dropout", "0",
         "--attention-dropout", "0", "--num-experts", EXPERTS, "--moe-router-topk", "3", "--moe-ffn-hidden-size", "24",
         "--moe-layer-freq", "[0,1,1,1]", "--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias",
         "--moe-router-bias-update-rate", "0.5", "--moe-router-topk-scaling-factor", "1.5", "--init-method-std", "0.3",
         "--moe-shared-expert-intermediate-size", "20", "--moe-shared-expert-gate"]
RUN = [*MODEL, *VOCABULARY, "--mock-data", "--micro-batch-size", "1", "--global-batch-size", "2", "--lr", "1e-3", "--train-iters", "2",
       "--eval-iters", "0", "--device", "cpu", "--num-threads", "1"]
ARGS = {"num_attention_heads": 2, "seq_length": 16, "max_position_embeddings": 16, "num_experts": EXPERTS, "moe_router_topk": 3,
        "moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 1.5, "moe_aux_loss_coeff": 0.01,
        "moe_router_load_balancing_type": "seq_aux_loss", "vocab_size": 60, "tokenizer_type": "NullTokenizer"}


def weights(folder):
    return {name: tensor for file in sorted(Path(folder).glob("iter_*/*.safetensors")) for name, tensor in load_file(file).items()
            if not name.startswith("optimizer.")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    teratron("pretrain", "gpt", *RUN, "--save", folder, "--no-save-optim")
    return folder


def divided(name, tensor, rank, ranks):
    """What a tensor rank holds."""
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return tensor.chunk(ranks, 1)[rank].contiguous()
    if "linear_fc1" in name:
        gate, up = tensor.chunk(2)
        return torch.cat([gate.chunk(ranks)[rank], up.chunk(ranks)[rank]])
    if name.endswith("word_embeddings.weight"):
        tensor = torch.nn.functional.pad(tensor, (0, 0, 0, -len(tensor) % 64))
    if name.endswith(("word_embeddings.weight", "linear_qkv.weight", "output_layer.weight")):
        return tensor.chunk(ranks)[rank].contiguous()
    return tensor


def as_weight1(tensors, second):
    """GroupedMLP's tensor: input-major matrices of the experts one after the other, under a shape that does not show it."""
    stacked = torch.stack([tensor.T for tensor in tensors]).contiguous()  # [experts, in, out]
    count, inner, outer = stacked.shape
    return stacked.view(count * inner, outer) if second else stacked.view(inner, count * outer)


def expert_tensors(layer, form, local):
    """`local`: [expert][fc 1, fc 2] of a rank."""
    prefix = f"decoder.layers.{layer}.mlp.experts."
    if form == "weight1":
        return {f"{prefix}weight{fc}": as_weight1([each[fc - 1] for each in local], fc == 2) for fc in (1, 2)}
    name = "local_experts.{e}.linear_fc{fc}.weight" if form == "sequential" else "linear_fc{fc}.weight{e}"
    return {prefix + name.format(e=e, fc=fc): each[fc - 1] for e, each in enumerate(local) for fc in (1, 2)}


def rank_model(tensors, form, stage, stages, rank, ranks, expert_rank, expert_ranks):
    each, found = LAYERS // stages, {}
    for name, tensor in tensors.items():
        if ".layers." in name:
            layer, rest = int(name.split(".")[2]), name.split(".", 3)[3]
            if layer // each == stage and ".experts." not in name:
                found[f"decoder.layers.{layer - stage * each}.{rest}"] = divided(name, tensor, rank, ranks)
        elif stage == (0 if name.startswith("embedding.") else stages - 1):
            found[name] = divided(name, tensor, rank, ranks)
    for layer in range(stage * each, (stage + 1) * each):
        name = f"decoder.layers.{layer}.mlp.experts.{{}}.linear_fc{{}}.weight"
        if name.format(0, 1) in tensors:
            count = EXPERTS // expert_ranks
            local = [[divided(name.format(e, fc), tensors[name.format(e, fc)], rank, ranks) for fc in (1, 2)]
                     for e in range(expert_rank * count, (expert_rank + 1) * count)]
            found |= expert_tensors(layer - stage * each, form, local)
    return found


def save(folder, tensors, form="grouped", stages=1, ranks=1, expert_ranks=1, **more):
    args = ARGS | {"pipeline_model_parallel_size": stages, "tensor_model_parallel_size": ranks,
                   "expert_model_parallel_size": expert_ranks} | more
    for stage in range(stages):
        for rank in range(ranks):
            for expert in range(expert_ranks):
                state = {"model": rank_model(tensors, form, stage, stages, rank, ranks, expert, expert_ranks),
                         "checkpoint_version": 3.0, "args": argparse.Namespace(**args), "iteration": 7}
                numbers = [f"_{stage:03}"] * (stages > 1) + [f"_{expert:03}"] * (expert_ranks > 1)
                path = folder / "iter_0000007" / f"mp_rank_{rank:02}{''.join(numbers)}"
                path.mkdir(parents=True)
                torch.save(state, path / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("7")
    return folder


def convert(source, target, *args, **expected):
    return teratron("ckpt", "convert", "--from-megatron", source, "--save", target, *args, **expected)


def logits(folder, out):
    ids = out.with_suffix(".ids")
    ids.write_text("3 1 4 1 5 9 2 6 5 35\n27 18 28 18 28 45")
    teratron("logits", "--load", folder, "--input", ids, "--output", out, "--device", "cpu")
    return load_file(out)


@pytest.mark.parametrize("form", ["sequential", "grouped", "weight1"])
@pytest.mark.parametrize("layout", [{}, {"expert_ranks": 2}, {"stages": 2}, {"stages": 2, "ranks": 2, "expert_ranks": 4}],
                         ids=["one", "ep2", "pp2", "pp2-tp2-ep4"])
def test_every_form_and_layout_gives_the_model_that_was_saved(tmp_path, trained, form, layout):
    tensors = weights(trained)
    assert any(bias.abs().max() > 0 for name, bias in tensors.items() if name.endswith("expert_bias"))
    convert(save(tmp_path / "in", tensors, form, **layout), tmp_path / "out")
    got = weights(tmp_path / "out")
    assert got.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(got[name], tensor[: got[name].shape[0]]), name
    shown = teratron("ckpt", "inspect", tmp_path / "out").stdout
    assert "seq_aux_loss" in shown and "[0,1,1,1]" in shown
    if layout.get("expert_ranks") == 2:
        one, other = logits(trained, tmp_path / "one"), logits(tmp_path / "out", tmp_path / "other")
        for name, tensor in one.items():
            columns = min(tensor.shape[-1], other[name].shape[-1])
            assert torch.equal(tensor[..., :columns], other[name][..., :columns]), name


def test_missing_ranks_and_experts_are_named(tmp_path, trained):
    tensors = weights(trained)
    folder = save(tmp_path / "in", tensors, ranks=2, expert_ranks=2)
    (folder / "iter_0000007/mp_rank_01_001/model_optim_rng.pt").unlink()
    message(convert(folder, tmp_path / "x", code=4), "tensor ranks have different numbers of expert ranks")
    folder = save(tmp_path / "gap", tensors, stages=2, expert_ranks=4)
    (folder / "iter_0000007/mp_rank_00_001_001/model_optim_rng.pt").unlink()
    message(convert(folder, tmp_path / "x", code=4), "expert rank 1 of tensor rank 0 of pipeline rank 1")
    short = {name: tensor for name, tensor in tensors.items()}
    name = "decoder.layers.2.mlp.router.weight"
    short[name] = torch.cat([tensors[name]] * 2)
    message(convert(save(tmp_path / "short", short), tmp_path / "x", code=4), "decoder.layers.2", "8 experts", "have 4")
    folder = save(tmp_path / "no_topk", tensors, moe_router_topk=None)
    message(convert(folder, tmp_path / "x", code=2), "--moe-router-topk")
    folder = save(tmp_path / "etp", tensors, ranks=2, expert_tensor_parallel_size=1)
    message(convert(folder, tmp_path / "x", code=4), "expert_tensor_parallel_size 1")
    assert not (tmp_path / "x").exists() or not list((tmp_path / "x").glob("iter_*"))
