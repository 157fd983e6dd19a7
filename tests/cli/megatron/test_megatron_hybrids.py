"""Models of Mamba-2, hybrids and gated delta nets for Megatron-LM and back: keys, what tensor ranks have, values, trainings that go on."""

import argparse

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from program import VOCABULARY, losses, message, needs_binary, teratron, weights
from test_megatron_torch_dist import Folder

pytestmark = needs_binary
H, P, G, N = 8, 16, 2, 16  # heads, channels, groups and state of Mamba-2
HK, K, HV, V = 2, 6, 4, 10  # heads of keys and values of the delta net, and their channels
SIZES = ["--hidden-size", 32, "--num-attention-heads", 4, "--seq-length", 16, "--max-position-embeddings", 16, "--normalization", "RMSNorm",
         "--disable-bias-linear", "--ffn-hidden-size", 48, "--linear-num-key-heads", HK, "--linear-key-head-dim", K, "--linear-num-value-heads", HV,
         "--linear-value-head-dim", V]
MAMBA = ["--mamba-num-heads", H, "--mamba-head-dim", P, "--mamba-num-groups", G, "--mamba-state-dim", N, "--position-embedding-type", "none",
         "--num-experts", 4, "--moe-ffn-hidden-size", 24, "--moe-router-topk", 2, "--moe-router-dtype", "fp32", "--swiglu"]
GPT = ["--num-layers", 4, "--experimental-attention-variant", "gdn", "--linear-attention-freq", 2, "--attention-output-gate", "--qk-layernorm",
       "--apply-layernorm-1p", "--position-embedding-type", "rope", "--rotary-percent", 0.5, "--group-query-attention", "--num-query-groups", 2,
       "--swiglu", "--untie-embeddings-and-output-weights"]
RUN = [*SIZES, *VOCABULARY, "--mock-data", "--micro-batch-size", 2, "--global-batch-size", 4, "--lr", "1e-2", "--log-interval", 1,
       "--eval-iters", 0, "--device", "cpu", "--num-threads", 1, "--hidden-dropout", 0, "--attention-dropout", 0, "--train-iters", 4]
FAMILIES = {"mamba": ["mamba", "--hybrid-layer-pattern", "M-*GEM", *MAMBA], "gdn": ["gpt", *GPT]}
STATES = ("exp_avg", "exp_avg_sq")


def train(family, folder, *flags):
    return losses(teratron("pretrain", *FAMILIES[family], *RUN, "--save", folder, *flags).stdout)


@pytest.fixture(scope="module", params=FAMILIES)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, folder, train(request.param, folder, "--save-interval", 2)


def tensors_of(folder, iteration=2):
    return {name: tensor for file in sorted((folder / f"iter_{iteration:07}").glob("*.safetensors")) for name, tensor in load_file(file).items()}


def segments(name):
    """Rows of the parts that tensor ranks cut separately, and their names in torch_dist."""
    keys, values, groups = HK * K, HV * V, G * N
    if "mixer.in_proj" in name:
        return dict(z=H * P, x=H * P, B=groups, C=groups, dt=H)
    if "mixer.conv1d" in name:
        return dict(x=H * P, B=groups, C=groups)
    if "self_attention.in_proj" in name:
        return dict(query=keys, key=keys, value=values, z=values, beta=HV, alpha=HV)
    if "self_attention.conv1d" in name:
        return dict(query=keys, key=keys, value=values)
    return None


def shard(name, tensor, rank, ranks):
    """What a tensor rank has."""
    parts = segments(name)
    if parts:
        return torch.cat([part.chunk(ranks)[rank] for part in tensor.split(list(parts.values()))])
    if name.endswith(("linear_fc1.weight",)):
        return torch.cat([half.chunk(ranks)[rank] for half in tensor.chunk(2)])
    if name.endswith((".dt_bias", ".A_log", ".D", "mixer.norm.weight", "linear_qkv.weight")):
        return tensor.chunk(ranks)[rank]
    if name.endswith(("out_proj.weight", "linear_proj.weight", "linear_fc2.weight")):
        return tensor.chunk(ranks, 1)[rank]
    return tensor


def theirs(name, family, tensors, te):
    """A key of Megatron-Core's models."""
    layer, _, rest = name.partition(".layers.")[2].partition(".")
    prefix = f"decoder.layers.{layer}."
    fused = {"norm.weight": "mixer.in_proj", "pre_mlp_layernorm.weight": "mlp.linear_fc1",
             "input_layernorm.weight": "self_attention.linear_qkv" if f"{prefix}self_attention.linear_qkv.weight" in tensors else
             "self_attention.in_proj"}.get(rest)
    if te and fused and f"{prefix}{fused}.weight" in tensors:
        return f"{prefix}{fused}.layer_norm_weight"
    return name


def value(name, tensor, family):
    """Megatron-LM centers the weights of these norms as those of the others."""
    return tensor - 1 if family == "gdn" and name.endswith("out_norm.weight") else tensor


def export(source, target, *args, **expected):
    return teratron("ckpt", "convert", "--load", source, "--ckpt-step", 2, "--to-megatron", target, *args, **expected)


def back(source, target, *args):
    teratron("ckpt", "convert", "--from-megatron", source, "--save", target, "--vocab-size", 61, *args)
    return target


def assert_equal(got, expected, family):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        if name.endswith("out_norm.weight") and "exp_avg" not in name and family == "gdn":  # 1 was taken away and added again
            torch.testing.assert_close(got[name], tensor, rtol=0, atol=2e-7)
        else:
            assert torch.equal(got[name], tensor), name


def cut_vocabulary(tensors):
    return {name: tensor[:61] if "word_embeddings" in name or "output_layer" in name else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("names, ranks", [("mcore", 1), ("mcore", 2), ("mcore-te", 2)])
def test_files_of_ranks(run, tmp_path, names, ranks):
    family, source, _ = run
    export(source, tmp_path / "out", "--megatron-names", names, "--target-tensor-parallel-size", ranks)
    tensors = {name: tensor for name, tensor in tensors_of(source).items() if not name.startswith("optimizer.")}
    for rank in range(ranks):
        with torch.serialization.safe_globals([argparse.Namespace]):
            file = torch.load(tmp_path / f"out/iter_0000002/mp_rank_{rank:02}/model_optim_rng.pt", weights_only=True)
        got = {name: tensor for name, tensor in file["model"].items() if tensor is not None}
        for name, tensor in tensors.items():
            if "experts." in name or "word_embeddings" in name or "output_layer" in name:
                continue
            key = theirs(name, family, tensors, names == "mcore-te")
            assert torch.equal(got[key], shard(name, value(name, tensor, family), rank, ranks)), name
        args = vars(file["args"])
        if family == "mamba":
            assert args["hybrid_layer_pattern"] == "M-*GEM" and args["mamba_num_heads"] == H and args["mamba_state_dim"] == N
        else:
            assert args["experimental_attention_variant"] == "gdn" and args["linear_attention_freq"] == 2 and args["attention_output_gate"]
    assert_equal(tensors_of(back(tmp_path / "out", tmp_path / "again")), cut_vocabulary(tensors_of(source)), family)


@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_dist(run, tmp_path, ranks):
    """Parts of projections and convolutions are separate tensors, each layer's too."""
    family, source, expected = run
    export(source, tmp_path / "out", "--megatron-format", "torch_dist", "--target-tensor-parallel-size", ranks)
    folder = tmp_path / "out/iter_0000002"
    described = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {key: torch.empty(entry.size, dtype=entry.properties.dtype) for key, entry in described.items() if hasattr(entry, "size")}
    dcp.load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    tensors = tensors_of(source)
    for name, tensor in tensors.items():
        if name.startswith("optimizer.") or "experts." in name or "word_embeddings" in name or "output_layer" in name:
            continue
        parts = segments(name) or {}
        for kind in ("", *STATES):
            whole = value(name, tensor, family) if not kind else tensors[f"optimizer.{kind}.{name}"]
            prefix = f"optimizer.state.{kind}." if kind else ""
            if not parts:
                assert torch.equal(state[prefix + theirs(name, family, tensors, True)], whole), name
            for part, rows in zip(parts, whole.split(list(parts.values())) if parts else ()):
                assert torch.equal(state[f"{prefix}{name}.{part}"], rows), (name, part)
            assert not parts or prefix + name not in state
    back(tmp_path / "out", tmp_path / "again")
    assert_equal(tensors_of(tmp_path / "again"), cut_vocabulary(tensors), family)
    if family == "mamba":  # the training goes on to the bit
        text = teratron("pretrain", *FAMILIES[family], *RUN, "--load", tmp_path / "again", "--save", tmp_path / "on").stdout
        assert losses(text) == expected[2:]
        assert all(tensor.equal(weights(source, 4)[name]) for name, tensor in weights(tmp_path / "on", 4).items())


def members(group, names, tensors):
    """Parameters of an optimizer's group: it decays matrices, and no vectors."""
    return [name for name in names if (tensors[name].dim() > 1) == (group["wd_mult"] > 0)]


def test_optimizer_of_bf16(tmp_path):
    """Megatron-LM's optimizer has copies in fp32 of the weights of bf16 alone; what Mamba-2 makes decays of is of fp32 already."""
    source = tmp_path / "run"
    expected = train("mamba", source, "--bf16", "--save-interval", 2)
    tensors = tensors_of(source)
    wide = {name for name, tensor in tensors.items() if not name.startswith("optimizer.") and tensor.dtype == torch.float32}
    assert {name.rpartition(".")[2] for name in wide} == {"A_log", "D", "dt_bias"}
    export(source, tmp_path / "torch", "--megatron-names", "mcore")
    export(source, tmp_path / "dist", "--megatron-format", "torch_dist", "--target-tensor-parallel-size", 2)
    with torch.serialization.safe_globals([argparse.Namespace]):
        file = torch.load(tmp_path / "torch/iter_0000002/mp_rank_00/model_optim_rng.pt", weights_only=True)
    model = {name: tensor for name, tensor in file["model"].items() if tensor is not None}
    adam, copies = file["optimizer"]["optimizer"], file["optimizer"]["fp32_from_fp16_params"]
    assert len(adam["state"]) == len(model) and len(copies) == len(adam["param_groups"])
    for group, masters in zip(adam["param_groups"], copies):
        names = members(group, model, model)
        for number, name in zip(group["params"], names, strict=True):
            if f"optimizer.exp_avg.{name}" in tensors and "word_embeddings" not in name:
                assert all(adam["state"][number][kind].equal(tensors[f"optimizer.{kind}.{name}"]) for kind in STATES), name
        for copy, name in zip(masters, [name for name in names if model[name].dtype == torch.bfloat16], strict=True):
            if f"optimizer.param.{name}" in tensors and "word_embeddings" not in name:
                assert copy.equal(tensors[f"optimizer.param.{name}"]), name
    described = FileSystemReader(tmp_path / "dist/iter_0000002").read_metadata().state_dict_metadata
    assert described["optimizer.state.fp32_param.decoder.layers.0.mixer.A_log"].properties.dtype == torch.float32
    for name in ("torch", "dist"):
        again = back(tmp_path / name, tmp_path / f"{name}-again")
        assert_equal(tensors_of(again), cut_vocabulary(tensors), "mamba")
        text = teratron("pretrain", *FAMILIES["mamba"], *RUN, "--bf16", "--load", again, "--save", tmp_path / f"{name}-on").stdout
        assert losses(text) == expected[2:]


def test_a_checkpoint_of_another_writer(run, tmp_path):
    """Cut as four tensor ranks would, with a pattern that has stages."""
    family, source, _ = run
    tensors = {name: tensor for name, tensor in tensors_of(source).items() if not name.startswith("optimizer.") and "experts." not in name}
    if family == "mamba":
        tensors = {name: tensor for name, tensor in tensors.items() if ".layers.4." not in name}
        tensors = {name.replace(".layers.5.", ".layers.4."): tensor for name, tensor in tensors.items()}
    folder = Folder(tmp_path / "theirs/iter_0000007")
    for name, tensor in tensors.items():
        whole, parts = value(name, tensor, family), segments(name) or {}
        for part, rows in zip(parts, whole.split(list(parts.values())) if parts else ()):
            folder.tensor(f"{name}.{part}", rows, [2] + [1] * (rows.dim() - 1))
        if not parts:
            folder.tensor(theirs(name, family, tensors, True), whole, [1] * whole.dim())
    args = dict(num_attention_heads=4, seq_length=16, max_position_embeddings=16, norm_epsilon=1e-5, linear_num_key_heads=HK, linear_key_head_dim=K,
                position_embedding_type="none")
    args |= dict(hybrid_override_pattern="M-|*GM", mamba_num_groups=G, mamba_state_dim=N) if family == "mamba" else dict(
        experimental_attention_variant="gated_delta_net", linear_attention_freq=[1, 0, 1, 0], attention_output_gate=True, apply_layernorm_1p=True,
        qk_layernorm=True, group_query_attention=True, num_query_groups=2, position_embedding_type="rope")
    folder.finish({"checkpoint_version": 3.0, "iteration": 7, "args": argparse.Namespace(**args)}, True)
    got = tensors_of(back(tmp_path / "theirs", tmp_path / "ours"), 7)
    assert_equal(got, cut_vocabulary(tensors), family)
    (tmp_path / "ids.txt").write_text("1 2 3 4 5\n")
    teratron("logits", "--load", tmp_path / "ours", "--input", tmp_path / "ids.txt", "--output", tmp_path / "x.safetensors", "--device", "cpu")


def test_what_is_refused(run, tmp_path):
    family, source, _ = run
    what = "groups of Mamba-2" if family == "mamba" else "linear key heads"
    message(export(source, tmp_path / "x", "--target-tensor-parallel-size", 4, code=2), f"2 {what}", "--target-tensor-parallel-size")
    message(export(source, tmp_path / "x", "--megatron-names", "core", code=4), "does not exist")
    assert not (tmp_path / "x").exists()
