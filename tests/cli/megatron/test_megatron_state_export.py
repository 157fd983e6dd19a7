"""The state of a training for Megatron-LM: files as its optimizers have them, and trainings that go on from them to the bit."""

import argparse
import json

import pytest
import torch
import test_megatron_optimizer
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from megatron_files import load, unpack
from program import assert_bitwise, kept, losses, message, needs_binary, teratron, train
from test_megatron_optimizer import RANKS, STEPS, is_decayed, saved, write
from test_megatron_checkpoints import model
from test_megatron_experts import RUN
from test_megatron_torch_dist import Folder, noise, save as save_dist

pytestmark = needs_binary
COUNTERS = ("iteration", "consumed_train_samples", "consumed_valid_samples", "optimizer_steps", "opt_param_scheduler", "grad_scaler",
            "num_floating_point_operations_so_far")
STEP = f"iter_{STEPS:07}"
EXPERTS = [*RUN, "--train-iters", "4", "--save-interval", "2", "--log-interval", "1"]


@pytest.fixture(scope="module", params=["fp32", "bf16", "fp16"])
def run(tmp_path_factory, request):
    """The folder, its flags and the losses of six steps; saved after three."""
    folder = tmp_path_factory.mktemp("run")
    flags = ["--log-interval", "1", "--attention-dropout", "0.1", "--hidden-dropout", "0.1"]
    flags += [f"--{request.param}"] if request.param != "fp32" else []
    flags += ["--initial-loss-scale", "1024", "--loss-scale-window", "2"] if request.param == "fp16" else []
    found = losses(train(*kept(folder, 6, 3), *flags).stdout)
    assert len(found) == 6
    return folder, flags, found


def export(source, target, *args, **expected):
    return teratron("ckpt", "convert", "--load", source, "--ckpt-step", STEPS, "--to-megatron", target, *args, **expected)


def back(source, target, *args):
    teratron("ckpt", "convert", "--from-megatron", source, "--save", target, *args)
    return target


LAYOUTS = {"torch": [], "tp2-pp2": ["--target-tensor-parallel-size", 2, "--target-pipeline-parallel-size", 2],
           "v2": ["--megatron-names", "v2", "--target-pipeline-parallel-size", 2], "mcore": ["--megatron-names", "mcore"],
           "mcore-te": ["--megatron-names", "mcore-te", "--target-tensor-parallel-size", 2, "--target-pipeline-parallel-size", 2],
           "23.04": ["--use_distributed_optimizer", "--target_data_parallel_size", 3, "--target-tensor-parallel-size", 2],
           "23.04-pp2": ["--use_distributed_optimizer", "--target_data_parallel_size", 5, "--target-pipeline-parallel-size", 2],
           "torch_dist": ["--megatron-format", "torch_dist", "--target-tensor-parallel-size", 2]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_goes_on_to_the_bit(tmp_path, run, layout):
    source, flags, expected = run
    export(source, tmp_path / "theirs", *LAYOUTS[layout])
    back(tmp_path / "theirs", tmp_path / "ours", "--vocab-size", 61)
    tensors, state = saved(source)
    again, state_again = saved(tmp_path / "ours")
    assert_bitwise(again, tensors)
    assert {key: state_again[key] for key in COUNTERS} == {key: state[key] for key in COUNTERS}
    if layout in ("tp2-pp2", "23.04", "torch_dist"):
        assert losses(train(*kept(tmp_path / "ours", 6, 3), *flags).stdout) == expected[STEPS:]


def plain(path):
    """Every file can be read without running what it holds."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)


def compare(ours, theirs, path=(), ignored=()):
    """Structure, and every number that theirs has; ours may say more of a group."""
    if isinstance(theirs, dict):
        for key in theirs:
            if key not in ignored:
                compare(ours[key], theirs[key], (*path, key), ignored)
        if path and path[-1] in ("state", "model", "optimizer"):
            assert list(ours) == list(theirs), path
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), path
        for i, value in enumerate(theirs):
            compare(ours[i], value, (*path, i), ignored)
    elif torch.is_tensor(theirs):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), path
        if ours.shape and len(ours) in (31, 62):  # of the vocabulary: its padding is not the model's
            ours, theirs = ours[:30], theirs[:30]
        assert torch.equal(ours, theirs), path
    elif not isinstance(theirs, argparse.Namespace):
        assert ours == theirs, path


def in_order_of_megatron(name):
    """Its model's parameters: words before positions, modules as they are computed, weights before biases."""
    modules = ["word_embeddings", "position_embeddings", "input_layernorm", "linear_qkv", "linear_proj", "pre_mlp_layernorm", "linear_fc1", "linear_fc2"]
    layer = int(name.split(".layers.")[1].split(".")[0]) if ".layers." in name else 1000 if "final" in name else -1
    return layer, [module in name for module in modules][::-1], name.endswith("bias")


@pytest.mark.parametrize("form, stages", [("whole", 1), ("whole", 2), ("23.04", 1)])
def test_states_lie_where_megatron_has_them(tmp_path, run, form, stages, monkeypatch):
    """Files of an independent writer, there and back: the same numbers of parameters, groups and tensors."""
    source, flags, _ = run
    if "--fp16" in flags:
        pytest.skip("the writer of this test has no loss scale")
    tensors, state = saved(source)
    ordered = {name: tensors[name] for name in sorted(tensors, key=in_order_of_megatron)}
    monkeypatch.setattr(test_megatron_optimizer, "saved", lambda folder: (ordered, state))
    monkeypatch.setattr(test_megatron_optimizer, "groups_of", lambda parameters: [  # to 23.06 on every stage in this order
        [name for name, tensor in parameters.items() if is_decayed(name, tensor) == decayed] for decayed in (True, False)])
    theirs = write(tmp_path / "theirs", source, form, stages)
    layout = ["--target-tensor-parallel-size", RANKS, "--target-pipeline-parallel-size", stages, "--make-vocab-size-divisible-by", 31]
    layout += ["--use_distributed_optimizer", "--target_data_parallel_size", 3] if form == "23.04" else ["--megatron-names", "v2"]
    teratron("ckpt", "convert", "--load", back(theirs, tmp_path / "ours", "--vocab-size", 61), "--to-megatron", tmp_path / "out", *layout)
    names = {path.relative_to(theirs) for path in theirs.rglob("*.pt")}
    assert names == {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.pt")} and len(names) >= 2
    for name in names:
        got, expected = plain(tmp_path / "out" / name), load(theirs / name)
        # In fp32 Megatron-LM's optimizer has no wrapper.
        if name.name == "model_optim_rng.pt" and "--bf16" not in flags:
            expected["optimizer"] = expected["optimizer"]["optimizer"]
        if name.name == "optim.pt":
            assert got["optimizer"]["optimizer"]["state"].keys() == expected["optimizer"]["optimizer"]["state"].keys()
            compare_shards(got["optimizer"], expected["optimizer"])
            continue
        compare(got, expected, ignored=("args", "lr", "step"))
        assert got["args"].use_distributed_optimizer == (form == "23.04")
        if form == "whole":
            groups = (got["optimizer"].get("optimizer") or got["optimizer"])["param_groups"]
            assert [group["step"] for group in groups] == [STEPS] * 2 and [group["wd_mult"] for group in groups] == [1.0, 0.0]


def compare_shards(ours, theirs):
    """Parts of a data-parallel rank: only the padding of the vocabulary may differ."""
    assert [group["params"] for group in ours["optimizer"]["param_groups"]] == [group["params"] for group in theirs["optimizer"]["param_groups"]]
    pairs = [(ours["optimizer"]["state"][number][kind], state[kind])
             for number, state in theirs["optimizer"]["state"].items() for kind in ("exp_avg", "exp_avg_sq")]
    for group, expected in zip(ours["shard_fp32_from_float16_groups"], theirs["shard_fp32_from_float16_groups"]):
        pairs += list(zip(group, expected, strict=True))
    different = [1 for got, expected in pairs if got.shape != expected.shape or not torch.equal(got, expected)]
    assert all(got.shape == expected.shape and got.dtype == expected.dtype for got, expected in pairs)
    assert len(different) <= 3 and len(pairs) > 6


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    unpack("legacy.zip", folder / "legacy")
    return unpack("torch_dist.zip", folder)


def metadata(folder):
    return FileSystemReader(folder).read_metadata()


def shapes(folder):
    """Key -> dtype, size and chunks, or None if it is not a tensor."""
    return {key: None if not hasattr(value, "chunks") else
            (value.properties.dtype, tuple(value.size), sorted((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in value.chunks))
            for key, value in metadata(folder).state_dict_metadata.items()}


def dist_tensors(folder):
    """Read by PyTorch."""
    state = {key: torch.empty(value.size, dtype=value.properties.dtype)
             for key, value in metadata(folder).state_dict_metadata.items() if hasattr(value, "chunks")}
    dcp.load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    return state


@pytest.mark.parametrize("name, rows", [("gpt_a_core_v0.12.0_tp2", 67), ("gpt_a_HEAD_tp2", 67), ("bert_a_HEAD_tp2", 61)])
def test_torch_dist_is_that_of_megatron(fixtures, tmp_path, name, rows):
    back(fixtures / name, tmp_path / "ours", "--vocab-size", rows)
    teratron("ckpt", "convert", "--load", tmp_path / "ours", "--to-megatron", tmp_path / "out", "--megatron-format", "torch_dist",
             "--target-tensor-parallel-size", 2, "--make-vocab-size-divisible-by", 4)
    theirs, ours = fixtures / name / "iter_0000050", tmp_path / "out/iter_0000050"
    expected = shapes(theirs)
    expected.pop("common_state/shard_0_1", None)  # of core 0.13 on; before, common.pt
    assert shapes(ours) == expected
    got, wanted = dist_tensors(ours), dist_tensors(theirs)
    for key, tensor in wanted.items():
        limit = rows if key in ("embedding.word_embeddings.weight", "output_layer.bias") else None
        assert torch.equal(got[key][:limit], tensor[:limit]), key
    common = plain(ours / "common.pt")
    assert common["iteration"] == 50 and common["checkpoint_version"] == 3.0 and common["args"].num_attention_heads == 4
    assert json.loads((ours / "metadata.json").read_text()) == json.loads(
        (fixtures / "gpt_a_core_v0.12.0_tp2/iter_0000050/metadata.json").read_text())


def test_torch_dist_with_states_of_an_independent_writer(tmp_path):
    tensors = {name: tensor.bfloat16() for name, tensor in model(rows=16).items()}
    states = {kind: noise(tensors, seed) for seed, kind in enumerate(["exp_avg", "exp_avg_sq"])}
    states["fp32_param"] = {name: tensor.float() for name, tensor in tensors.items()}
    theirs = save_dist(tmp_path / "in", tensors, ranks=2, states=states)
    teratron("ckpt", "convert", "--from-megatron", theirs, "--to-megatron", tmp_path / "out", "--megatron-format", "torch_dist",
             "--target-tensor-parallel-size", 2, "--make-vocab-size-divisible-by", 8)
    got, wanted = dist_tensors(tmp_path / "out/iter_0000007"), dist_tensors(theirs / "iter_0000007")
    assert_bitwise(got, wanted)
    common, expected = plain(tmp_path / "out/iter_0000007/common.pt"), load(theirs / "iter_0000007/common.pt")
    assert common["optimizer"]["optimizer"]["state"] == {"common_step": 6} == expected["optimizer"]["optimizer"]["state"]
    assert common["opt_param_scheduler"] == expected["opt_param_scheduler"]
    assert [group["wd_mult"] for group in common["optimizer"]["optimizer"]["param_groups"]] == [1.0, 0.0]


def test_weights_alone_and_what_is_refused(tmp_path, run):
    source, _, _ = run
    export(source, tmp_path / "weights", "--no-save-optim")
    assert "optimizer" not in plain(tmp_path / "weights" / STEP / "mp_rank_00/model_optim_rng.pt")
    message(export(source, tmp_path / "x", "--megatron-format", "torch_dist", "--target-pipeline-parallel-size", 2, code=2),
            "pipeline", "--target-pipeline-parallel-size")
    message(export(source, tmp_path / "x", "--megatron-format", "torch_dist", "--use-distributed-optimizer", code=2),
            "--use-distributed-optimizer")
    message(export(source, tmp_path / "x", "--megatron-names", "mcore", "--use-distributed-optimizer", code=2), "23.06")
    said = export(source, tmp_path / "unused", "--target-data-parallel-size", 2)
    assert "no effect: --target-data-parallel-size" in said.stderr
    assert "--no-load-rng" in said.stderr
    assert not (tmp_path / "x").exists()


EXPERT_LAYOUTS = {"mcore": ["--megatron-names", "mcore"], "te-ep2": ["--megatron-names", "mcore-te", "--target-expert-parallel-size", 2],
                  "ep4-tp2-pp2": ["--target-expert-parallel-size", 4, "--target-tensor-parallel-size", 2, "--target-pipeline-parallel-size", 2],
                  "torch_dist": ["--megatron-format", "torch_dist", "--target-tensor-parallel-size", 2]}


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    """Saved after two of four steps."""
    folder = tmp_path_factory.mktemp("experts") / "run"
    done = teratron("pretrain", "gpt", *EXPERTS, "--save", folder)
    return folder, losses(done.stdout)


def expert_state(folder):
    file = next(folder.glob("iter_0000002"))
    return {name: tensor for part in sorted(file.glob("*.safetensors")) for name, tensor in load_file(part).items()}


@pytest.mark.parametrize("layout", EXPERT_LAYOUTS)
def test_experts_go_on_to_the_bit(tmp_path, experts, layout):
    folder, expected = experts
    assert len(expected) == 4
    teratron("ckpt", "convert", "--load", folder, "--ckpt-step", 2, "--to-megatron", tmp_path / "theirs", *EXPERT_LAYOUTS[layout])
    back(tmp_path / "theirs", tmp_path / "ours", "--vocab-size", 61)
    assert_bitwise(expert_state(tmp_path / "ours"), expert_state(folder))
    done = teratron("pretrain", "gpt", *EXPERTS, "--load", tmp_path / "ours", "--save", tmp_path / "ours")
    assert losses(done.stdout) == expected[2:]
    if "ep" in layout:  # Megatron-Core has an optimizer of dense parameters, and one of experts
        dense, sparse = plain(next((tmp_path / "theirs").rglob("*.pt")))["optimizer"]
        assert [group["is_expert_parallel"] for group in sparse["param_groups"]] == [True]
        assert [group["is_expert_parallel"] for group in dense["param_groups"]] == [False, False]
        shapes = {tuple(state["exp_avg"].shape) for state in sparse["state"].values()}
        ranks = 2 if "tp2" in layout else 1
        assert shapes == {(48 // ranks, 16), (16, 24 // ranks)}


def test_experts_of_torch_dist_lie_along_an_axis(tmp_path, experts):
    """As core to 0.14 has them; later releases have each apart, with gates apart from ups, and are read, too."""
    folder, _ = experts
    teratron("ckpt", "convert", "--load", folder, "--ckpt-step", 2, "--to-megatron", tmp_path / "out", "--megatron-format", "torch_dist")
    got, ours = dist_tensors(tmp_path / "out/iter_0000002"), expert_state(folder)
    key = "decoder.layers.1.mlp.experts.experts.linear_fc1.weight"  # the first layer has none: layers are numbered
    for prefix, state in {"": "", "optimizer.state.exp_avg.": "optimizer.exp_avg."}.items():
        wanted = torch.stack([ours[f"{state}decoder.layers.1.mlp.experts.{e}.linear_fc1.weight"] for e in range(4)])
        assert torch.equal(got[prefix + key], wanted)
    later = Folder(tmp_path / "later/iter_0000002")
    for name, tensor in got.items():
        if ".experts.experts." not in name:
            later.tensor(name, tensor, [1] * tensor.dim())
            continue
        head, tail = name.split(".experts.experts.")
        for e, expert in enumerate(tensor):
            halves = {"_w": expert[:24], "_v": expert[24:]} if "fc1" in tail else {"": expert}
            for half, part in halves.items():
                later.tensor(f"{head}.experts.experts.{e}.{tail}{half}", part.clone(), [1] * part.dim())
    later.finish(plain(tmp_path / "out/iter_0000002/common.pt"), separate=False)
    (tmp_path / "later/latest_checkpointed_iteration.txt").write_text("2")
    back(tmp_path / "later", tmp_path / "again", "--vocab-size", 61)
    assert_bitwise(expert_state(tmp_path / "again"), ours)
