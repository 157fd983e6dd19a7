"""Hostile and damaged files of Hugging Face weights: one message, exit 4, no trace."""

import io
import json
import struct
import zipfile

import torch
from program import each, message, needs_binary, teratron
from safetensors.torch import save_file

pytestmark = needs_binary

HF_CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 11, "n_positions": 8,
             "n_embd": 8, "n_layer": 1, "n_head": 2, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}


def convert(folder, file, data):
    """Converts a model whose weights are one file."""
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text(json.dumps(HF_CONFIG))
    (folder / "hf" / file).write_bytes(data)
    result = teratron("ckpt", "convert", "--from-hf", folder / "hf", "--save", folder / "converted", code=4)
    assert not list(folder.glob("converted/iter_*"))
    return result


def safetensors(header, data=b""):
    return struct.pack("<Q", len(header)) + header.encode() + data


def entry(shape="[2]", offsets="[0,8]", dtype="F32"):
    return f'{{"transformer.wte.weight":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}'


HEADERS = {
    "empty file": b"",
    "length 2^63": struct.pack("<Q", 2**63) + b"{}",
    "length beyond the file": struct.pack("<Q", 1000) + b"{}",
    "no JSON": safetensors("{nonsense"),
    "deep": safetensors('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "negative shape": safetensors(entry("[-2]"), bytes(8)),
    "shape overflows": safetensors(entry("[4294967296,4294967296,4294967296]"), bytes(8)),
    "reversed offsets": safetensors(entry(offsets="[8,0]"), bytes(8)),
    "beyond the end": safetensors(entry("[200]", "[0,800]"), bytes(8)),
    "hole": safetensors(entry(offsets="[4,12]"), bytes(12)),
    "unknown type": safetensors(entry(dtype="F31"), bytes(8)),
    "duplicate key": safetensors(entry()[:-1] + "," + entry()[1:], bytes(8)),
}


def test_hostile_safetensors_header(tmp_path):
    def check(name, folder):
        message(convert(folder, "model.safetensors", HEADERS[name]), "model.safetensors")

    each(HEADERS, check, tmp_path)


def test_hostile_safetensors_index(tmp_path):
    def check(file, folder):
        save_file({"transformer.wte.weight": torch.zeros(11, 8)}, folder / "model.safetensors")
        index = json.dumps({"metadata": {}, "weight_map": {"transformer.wte.weight": file}}).encode()
        message(convert(folder, "model.safetensors.index.json", index), file)

    each(["../model.safetensors", "/etc/hostname", "absent.safetensors"], check, tmp_path)


def torch_zip(pickle, data=b"\0" * 352, compression=zipfile.ZIP_STORED):
    """A file of torch.save with one storage."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        file.writestr("archive/data.pkl", pickle)
        file.writestr("archive/data/0", data)
    return buffer.getvalue()


def torch_tensor(shape, offset=0, elements=88):
    """A pickle of {"transformer.wte.weight": tensor}."""
    numbers = b"(" + b"".join(b"I%d\n" % size for size in shape) + b"t"
    strides = b"(" + b"".join(b"I%d\n" % (8 if i + 1 < len(shape) else 1) for i in range(len(shape))) + b"t"
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuI%d\ntQ" % elements
    return (b"\x80\x02}X\x16\0\0\0transformer.wte.weightctorch._utils\n_rebuild_tensor_v2\n(" + storage
            + b"I%d\n" % offset + numbers + strides + b"\x89}tRs.")


def test_pickled_weights(tmp_path):
    cases = [(b"\x80\x02}q\x00.", "not a file of torch.save"),
             (torch_zip(b"cposix\nsystem\n(X\x05\0\0\0touchtR."), "posix.system"),
             (torch_zip(torch_tensor([11, 8]))[:-60], "pytorch_model.bin"),
             (torch_zip(torch_tensor([11, 8]), compression=zipfile.ZIP_DEFLATED), "compressed"),
             (torch_zip(torch_tensor([11, 8], offset=1)), "exceeds its storage"),
             (torch_zip(torch_tensor([11, 8], elements=1 << 50)), "shorter than"),
             (torch_zip(b"]."), "dict of tensors"),
             (torch_zip(b"}I1\nI2\ns."), "not a tensor with a name"),
             (torch_zip(torch_tensor([11, 8])), "h.0.ln_1.weight")]

    def check(case, folder):
        message(convert(folder, "pytorch_model.bin", case[0]), case[1])

    each(cases, check, tmp_path)


def test_inspect_and_verify(tmp_path):
    layer = {"ln_1": 8, "ln_2": 8, "attn.c_attn": (8, 24), "attn.c_proj": (8, 8), "mlp.c_fc": (8, 32), "mlp.c_proj": (32, 8)}
    tensors = {"transformer.wte.weight": torch.randn(11, 8), "transformer.wpe.weight": torch.randn(8, 8)}
    for name, shape in {"ln_f": 8, **{f"h.0.{name}": shape for name, shape in layer.items()}}.items():
        tensors[f"transformer.{name}.weight"] = torch.randn(shape)
        tensors[f"transformer.{name}.bias"] = torch.randn(shape[-1] if isinstance(shape, tuple) else shape)
    for name in ("safe", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(HF_CONFIG))
    save_file(tensors, tmp_path / "safe" / "model.safetensors")
    torch.save(tensors, tmp_path / "torch" / "pytorch_model.bin")
    for name in ("safe", "torch"):
        shown = teratron("ckpt", "inspect", tmp_path / name, "--tensors").stdout
        assert "Hugging Face, gpt2" in shown and f"{sum(t.numel() for t in tensors.values())} elements" in shown
        assert "decoder.layers.0.self_attention.linear_qkv.weight" in shown and "[24, 8]" in shown
    assert "no checksums" in teratron("ckpt", "verify", tmp_path / "safe").stdout
    assert "all checksums match" in teratron("ckpt", "verify", tmp_path / "torch").stdout
    damaged = bytearray((tmp_path / "torch" / "pytorch_model.bin").read_bytes())
    at = damaged.index(tensors["transformer.wte.weight"].numpy().tobytes())
    damaged[at + 5] ^= 4
    (tmp_path / "torch" / "pytorch_model.bin").write_bytes(damaged)
    message(teratron("ckpt", "verify", tmp_path / "torch", code=4), "pytorch_model.bin", "damaged")
    del tensors["transformer.ln_f.bias"]
    save_file(tensors, tmp_path / "safe" / "model.safetensors")
    for command in ("inspect", "verify"):
        message(teratron("ckpt", command, tmp_path / "safe", code=4), "ln_f.bias", "missing")


def test_hostile_index_of_pickled_weights(tmp_path):
    def check(file, folder):
        index = json.dumps({"metadata": {}, "weight_map": {"transformer.wte.weight": file}}).encode()
        message(convert(folder, "pytorch_model.bin.index.json", index), file)

    each(["../pytorch_model.bin", "/etc/hostname", "absent.bin", "model.safetensors"], check, tmp_path)
