"""Small files that ask for much: the program has at most 64 MiB more in memory than the file, and refuses it soon."""

import io
import json
import pickle
import zipfile

from program import each, measured, needs_binary
from test_foreign_weights import HF_CONFIG, torch_tensor, torch_zip

pytestmark = needs_binary

MIB = 1 << 20
KEY = b"X\x00\x00\x10\x00" + b"k" * MIB + b"q\x01"  # a text of 1 MiB, remembered
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nh\x01X\x03\0\0\0cpuK\x06tQ0"

PICKLES = {
    "duplicates": b"\x80\x02N" + b"2" * (16 * MIB) + b".",
    "marks": b"\x80\x02" + b"(" * (16 * MIB) + b".",
    "lists": b"\x80\x02" + b"]" * (16 * MIB) + b".",
    "numbers": b"\x80\x02](" + b"M\x01\x01" * (5 * MIB) + b"e.",
    "keys of storages": b"\x80\x02" + KEY + STORAGE * 20_000 + b".",
    "names of classes": b"\x80\x02" + KEY + b"h\x01h\x01\x930" * 20_000 + b".",
    "keys of a dict": b"\x80\x02" + KEY + b"}(" + b"h\x01h\x01" * 500_000 + b"u.",
    "shared": b"\x80\x02]q\x01" + b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(1, 100)) + b".",
}


def packed(entries):
    """Entries of so many MiB of zeros, deflated, and others as they are."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            with archive.open(name, "w") as entry:
                for _ in range(content if isinstance(content, int) else 1):
                    entry.write(bytes(MIB) if isinstance(content, int) else content)
    return file.getvalue()


def adapter(folder, rank):
    """A folder of PEFT's that names a rank."""
    header = json.dumps({f"base_model.model.transformer.h.0.attn.c_attn.lora_{side}.weight": {
        "dtype": "F32", "shape": shape, "data_offsets": place} for side, shape, place in (
            ("A", [1, 8], [0, 32]), ("B", [24, 1], [32, 128]))}).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(128))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 1}))


def check(folder, size, args, baseline=[]):
    peak, seconds = measured(*args, code=4)
    if not baseline:
        baseline.append(measured("ckpt", "inspect", folder / "absent", code=4)[0])
    assert peak - baseline[0] <= size + 64 * MIB, f"{(peak - baseline[0]) / MIB:.0f} MiB for {size / MIB:.1f} MiB"
    assert seconds < 10


def test_files_that_ask_for_much_memory(tmp_path):
    whole = torch_tensor([11, 8])
    files = {name: torch_zip(text) for name, text in PICKLES.items()}
    files["stream"] = pickle.dumps(0x1950a86a20f9469cfc6c, 2) + PICKLES["duplicates"]
    files["a packed pickle"] = packed({"archive/data.pkl": 300})
    files["a packed byte order"] = packed({"archive/byteorder": 300, "archive/data.pkl": whole})
    files["a packed storage"] = packed({"archive/data.pkl": whole, "archive/data/0": 300})

    def inspect(name, folder):
        (folder / "config.json").write_text(json.dumps(HF_CONFIG))
        (folder / "pytorch_model.bin").write_bytes(files[name])
        check(folder, len(files[name]), ["ckpt", "inspect", folder])

    each(files, inspect, tmp_path)


def test_archives_of_megatron_that_ask_for_much_memory(tmp_path):
    archive = tmp_path / "model.zip"
    archive.write_bytes(packed({f"mp_rank_0{rank}/model_optim_rng.pt": 200 for rank in range(2)}))
    check(tmp_path, archive.stat().st_size, ["ckpt", "convert", "--from-megatron", archive, "--save", tmp_path / "out"])


def test_metadata_that_asks_for_much_memory(tmp_path):
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    for text in PICKLES.values():
        (tmp_path / ".metadata").write_bytes(text)
        check(tmp_path, len(text), ["ckpt", "convert", "--from-megatron", tmp_path, "--save", tmp_path / "out"])


def test_an_adapters_rank_is_that_of_its_weights(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**HF_CONFIG, "n_embd": 8}))
    layer = {"ln_1": [8], "ln_2": [8], "attn.c_attn": [8, 24], "attn.c_proj": [8, 8], "mlp.c_fc": [8, 32], "mlp.c_proj": [32, 8]}
    shapes = {"wte.weight": [11, 8], "wpe.weight": [8, 8]}
    for name, shape in {"ln_f": [8], **{f"h.0.{name}": shape for name, shape in layer.items()}}.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[-1:]
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[f"transformer.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    for rank in (1 << 30, 1 << 62, 4.7, "x"):
        adapter(tmp_path, rank)
        check(tmp_path, at, ["ckpt", "merge-lora", "--from-hf", folder, "--lora", tmp_path, "--to-hf", tmp_path / "out"])
