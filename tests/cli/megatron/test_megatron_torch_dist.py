"""Megatron-LM's checkpoints in format torch_dist: its own, and others in its form, with other layouts and models."""

import argparse
import io
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex,
                                                   TensorProperties, TensorStorageMetadata)

from megatron_files import unpack
from program import assert_bitwise, message, needs_binary, teratron
from test_megatron_checkpoints import COLUMNS, ROWS, convert, model

pytestmark = needs_binary
ARGS = {"num_attention_heads": 2, "seq_length": 12, "max_position_embeddings": 12, "bias_gelu_fusion": False,
        "norm_epsilon": 1e-5, "consumed_train_samples": 100, "consumed_valid_samples": 20, "weight_decay": 0.1}
SCHEDULE = {"max_lr": 1e-3, "lr_warmup_steps": 0, "num_steps": 100, "lr_decay_style": "linear", "lr_decay_steps": 200, "min_lr": 0.0,
            "start_wd": 0.1, "end_wd": 0.1, "wd_incr_style": "constant", "wd_incr_steps": 200}


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    unpack("legacy.zip", folder / "legacy")
    return unpack("torch_dist.zip", folder)


@pytest.mark.parametrize("name, legacy, rows", [("gpt_a_core_v0.12.0_tp2", "gpt_a/tp2_pp2", 67), ("gpt_a_HEAD_tp2", "gpt_a/tp2_pp2", 67),
                                                ("bert_a_HEAD_tp2", "bert_a/tp2_pp1", 61)])
def test_files_of_megatron_hold_what_its_legacy_files_hold(fixtures, tmp_path, name, legacy, rows):
    got = convert(fixtures / name, tmp_path / "out", "--vocab-size", rows)
    assert_bitwise(got, convert(fixtures / "legacy" / legacy, tmp_path / "legacy", "--vocab-size", rows))
    assert (tmp_path / "out/iter_0000050").exists()


class Folder:
    """Writes a checkpoint: each chunk is a whole file of torch.save in a .distcp file."""

    def __init__(self, path):
        self.path, self.metadata, self.places, self.file = path, {}, {}, path / "__0_0.distcp"
        path.mkdir(parents=True)
        self.file.touch()

    def item(self, value, key, offset=None):
        data = io.BytesIO()
        torch.save(value, data)
        begin = self.file.stat().st_size
        with open(self.file, "ab") as out:
            out.write(data.getvalue())
        self.places[MetadataIndex(key, offset)] = _StorageInfo(self.file.name, begin, len(data.getvalue()))

    def tensor(self, key, tensor, parts):
        """`parts`: into how many equal parts each dimension is cut."""
        chunks, sizes = [], [size // count for size, count in zip(tensor.shape, parts)]
        for index in torch.cartesian_prod(*[torch.arange(count) for count in parts]).reshape(-1, len(parts)).tolist():
            offsets = torch.Size(i * size for i, size in zip(index, sizes))
            chunks.append(ChunkStorageMetadata(offsets, torch.Size(sizes)))
            self.item(tensor[tuple(slice(at, at + size) for at, size in zip(offsets, sizes))].clone(), key, offsets)
        self.metadata[key] = TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), tensor.shape, chunks)

    def object(self, key, value):
        self.item(value, key)
        self.metadata[key] = BytesStorageMetadata()

    def finish(self, common, separate):
        if separate:
            torch.save(common, self.path / "common.pt")
        else:
            self.object("common_state/shard_0_1", [common])
        (self.path / ".metadata").write_bytes(pickle.dumps(Metadata(self.metadata, None, self.places)))
        (self.path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))


def stacked(tensors):
    """Layers as one tensor, norms under the names of Transformer Engine."""
    fused = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_", "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    result = {}
    for name, tensor in tensors.items():
        if ".layers." in name:
            stack, _, number, rest = name.split(".", 3)
            for ours, theirs in fused.items():
                rest = rest.replace(ours, theirs)
            result.setdefault(f"{stack}.layers.{rest}", []).append((int(number), tensor))
        else:
            result[name] = tensor
    return {name: torch.stack([tensor for _, tensor in sorted(value, key=lambda pair: pair[0])]) if isinstance(value, list) else value
            for name, value in result.items()}


def cuts(name, tensor, ranks, swiglu=False):
    parts = [tensor.shape[0] if ".layers." in name and not name.split(".")[2].isdigit() else 1] + [1] * (tensor.dim() - 1)
    if name.endswith(COLUMNS):
        parts[-1] = ranks
    elif name.endswith(ROWS) and "layer_norm" not in name:
        parts[1 if parts[0] > 1 or tensor.dim() == 3 else 0] = ranks * (2 if swiglu and "linear_fc1" in name else 1)
    return parts


def save(path, tensors, ranks=1, numbered=False, swiglu=False, states=None, args=(), separate=True):
    folder = Folder(path / "iter_0000007")
    whole = tensors if numbered else stacked(tensors)
    for name, tensor in whole.items():
        folder.tensor(name, tensor, cuts(name, tensor, ranks, swiglu))
        folder.object(f"{name.rsplit('.', 1)[0]}._extra_state/shard_0_1", io.BytesIO())
    common = {"checkpoint_version": 3.0, "iteration": 7, "opt_param_scheduler": SCHEDULE}
    if args is not None:
        common["args"] = argparse.Namespace(**{**ARGS, "swiglu": swiglu, **dict(args)})
    for kind, values in (states or {}).items():
        for name, tensor in stacked(values).items():
            folder.tensor(f"optimizer.state.{kind}.{name}", tensor, cuts(name, tensor, ranks, swiglu))
    if states:
        common["optimizer"] = {"optimizer": {"state": {"common_step": 6}, "param_groups": []},
                               "grad_scaler": {"scale": torch.tensor([1024.0]), "growth_tracker": 3, "hysteresis_tracker": 2}}
    folder.finish(common, separate)
    (path / "latest_checkpointed_iteration.txt").write_text("7")
    return path


@pytest.mark.parametrize("family, options", [("gpt", {"ranks": 2, "swiglu": True}), ("bert", {"ranks": 4, "separate": False}),
                                             ("gpt", {"ranks": 2, "numbered": True})])
def test_layouts_give_the_same_tensors(tmp_path, family, options):
    tensors = model(family, heads=4, swiglu=options.get("swiglu", False), seed=3)
    options = {**options, "args": {"num_attention_heads": 4}}
    assert_bitwise(convert(save(tmp_path / "in", tensors, **options), tmp_path / "out"), tensors)


def test_without_args_shapes_and_flags_describe_the_model(tmp_path):
    folder = save(tmp_path / "in", model(), args=None)
    message(convert(folder, tmp_path / "x", code=2), "--num-attention-heads")
    convert(folder, tmp_path / "out", "--num-attention-heads", 2, "--vocab-size", 13)
    text = teratron("ckpt", "inspect", tmp_path / "out").stdout
    assert '"num_layers": 4' in text and '"vocab_size": 13' in text


def noise(tensors, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(tensor.shape, generator=generator) for name, tensor in tensors.items()}


@pytest.mark.parametrize("flat", [False, True])
def test_optimizer_state_comes_along(tmp_path, flat):
    tensors = {name: tensor.bfloat16() for name, tensor in model().items()}
    states = {kind: noise(tensors, seed) for seed, kind in enumerate(["exp_avg", "exp_avg_sq"])}
    states["fp32_param"] = {name: tensor.float() for name, tensor in tensors.items()}
    folder = save(tmp_path / "in", tensors, ranks=2, states=states)
    if flat:
        reshape_to_flat(folder / "iter_0000007", 2)
    got = convert(folder, tmp_path / "out")
    names = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "fp32_param": "param"}
    expected = tensors | {f"optimizer.{names[kind]}.{name}": value for kind, values in states.items() for name, value in values.items()}
    assert_bitwise(got, expected)
    manifest = json.loads((tmp_path / "out/iter_0000007/manifest.json").read_text())
    state = manifest["state"] if isinstance(manifest["state"], dict) else json.loads(manifest["state"])
    assert state["optimizer_steps"] == 6 and state["consumed_train_samples"] == 100 and state["opt_param_scheduler"] == SCHEDULE
    assert state["grad_scaler"] == {"scale": 1024.0, "growth_tracker": 3, "hysteresis_tracker": 2}
    assert not [name for name in convert(folder, tmp_path / "weights", "--no-load-optim") if name.startswith("optimizer.")]


def reshape_to_flat(path, data_parallel):
    """States as older releases have them: what each tensor rank has, flat, in parts of the data-parallel ranks."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    places = {(index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()}
    data = (path / "__0_0.distcp").read_bytes()
    folder = Folder(path.parent / "flat")
    for key, entry in list(metadata.state_dict_metadata.items()):
        if not key.startswith("optimizer.state."):
            continue
        grid = [len({chunk.offsets[i] for chunk in entry.chunks}) for i in range(len(entry.size))]
        chunks, sizes = [], None
        for chunk in entry.chunks:
            info = places[key, tuple(chunk.offsets)]
            values = torch.load(io.BytesIO(data[info.offset:info.offset + info.length])).flatten()
            index = [offset // size for offset, size in zip(chunk.offsets, chunk.sizes)]
            parts = values.chunk(data_parallel) if values.numel() % data_parallel == 0 else [values]
            for number, part in enumerate(parts):
                offsets = torch.Size([*index, number * parts[0].numel()])
                sizes = torch.Size([1] * len(index) + [part.numel()])
                chunks.append(ChunkStorageMetadata(offsets, sizes))
                folder.item(part.reshape(sizes).clone(), key, offsets)
        entry.size, entry.chunks = torch.Size([*grid, values.numel()]), chunks
        metadata.storage_data = {index: info for index, info in metadata.storage_data.items() if index.fqn != key}
    (path / "__1_0.distcp").write_bytes(folder.file.read_bytes())
    metadata.storage_data |= {index: _StorageInfo("__1_0.distcp", info.offset, info.length) for index, info in folder.places.items()}
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


class Hostile:
    def __reduce__(self):
        return __import__("os").system, ("touch harmed",)


def changed(folder, change):
    path = folder / "iter_0000007/.metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


def first_place(metadata, name="embedding.word_embeddings.weight"):
    return next(index for index in metadata.storage_data if index.fqn == name)


def move(metadata):
    index = first_place(metadata)
    metadata.storage_data[index] = _StorageInfo("../secret", 0, 100)


def shorten(metadata):
    metadata.state_dict_metadata["embedding.word_embeddings.weight"].chunks.pop()


def enlarge(metadata):
    metadata.state_dict_metadata["embedding.word_embeddings.weight"].size = torch.Size([1 << 60, 1 << 60])


def other_shape(metadata):
    index, other = first_place(metadata), first_place(metadata, "decoder.final_layernorm.weight")
    metadata.storage_data[index] = metadata.storage_data[other]


@pytest.mark.parametrize("change, words", [
    (move, "not the name of a file"), (shorten, "do not make it whole"), (enlarge, "do not make it whole"),
    (lambda metadata: metadata.storage_data.pop(first_place(metadata)), "is missing"), (other_shape, "not what .metadata says"),
    (lambda metadata: setattr(metadata, "planner_data", Hostile()), "refused")])
def test_damaged_metadata_is_refused(tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    folder = save(tmp_path / "in", model(rows=24), ranks=2)
    changed(folder, change)
    message(convert(folder, tmp_path / "x", code=4, memory=4 << 30), words)
    assert not (tmp_path / "harmed").exists() and not list(tmp_path.glob("x/iter_*"))


def test_metadata_of_another_form_is_refused_by_its_name(tmp_path):
    """Cut off, another file, lost as in copies of "*", and one that takes more memory than it may."""
    path = save(tmp_path / "in", model()) / "iter_0000007/.metadata"
    whole = path.read_bytes()
    large = pickle.loads(whole)
    names = [f"optimizer.state.exp_avg.{i}" for i in range(150_000)]
    large.state_dict_metadata |= dict.fromkeys(names, BytesStorageMetadata())
    large.storage_data |= {MetadataIndex(name): _StorageInfo("__0_0.distcp", 0, 10) for name in names}
    for data, words in [(whole[:-1], "cut off"), (b"", "cut off"), (b"PK\3\4" + bytes(100), "is not an operation"), (None, "has no file .metadata"),
                        (pickle.dumps(large), "MiB")]:
        path.write_bytes(data) if data is not None else path.unlink()
        said = message(convert(tmp_path / "in", tmp_path / "out", code=4), ".metadata", words)
        assert ("torch_dist" in said) == (data is not None) and "torch.save" not in said


def test_incomplete_folders_are_refused(tmp_path):
    folder = save(tmp_path / "in", model())
    message(convert(folder, tmp_path / "x", "--ckpt-step", 8, code=4), "no iteration 8")
    data = folder / "iter_0000007/__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-2000])
    message(convert(folder, tmp_path / "x", code=4), "__0_0.distcp")
    data.unlink()
    message(convert(folder, tmp_path / "x", code=4), "__0_0.distcp")
    common = folder / "iter_0000007/common.pt"
    torch.save({"args": Hostile()}, common)
    message(convert(folder, tmp_path / "x", code=4), "refused")
    common.unlink()
    message(convert(folder, tmp_path / "x", code=4), "common.pt")
    (folder / "iter_0000007/metadata.json").unlink()
    message(convert(folder, tmp_path / "x", code=4), "metadata.json")
