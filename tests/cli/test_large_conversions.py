"""Conversions of large Hugging Face models: memory, speed, and the progress that a terminal shows."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess

import numpy
import pytest

from program import BINARY, environment, interrupted, measured, message, needs_binary, teratron, wait_for
from terminal import TerminalSession

pytestmark = needs_binary
LLAMA = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
         "hidden_act": "silu", "max_position_embeddings": 64}
GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 8, "n_positions": 64}
WIDE = {"embedding": {**LLAMA, "hidden_size": 1024, "intermediate_size": 1024, "vocab_size": 524288, "tie_word_embeddings": True},
        "gates": {**LLAMA, "hidden_size": 1024, "intermediate_size": 196608, "vocab_size": 1000, "tie_word_embeddings": True},
        "transposed": {**GPT2, "n_embd": 512, "n_inner": 557056, "vocab_size": 1000}}


def shapes(config):
    """Of the tensors in the files."""
    if config["model_type"] == "gpt2":
        hidden, inner, layer = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"], "h.0."
        sizes = {"wte": (config["vocab_size"], hidden), "wpe": (config["n_positions"], hidden), "ln_f": (hidden,)}
        sizes |= {layer + name: shape for name, shape in {"ln_1": (hidden,), "ln_2": (hidden,), "attn.c_attn": (hidden, 3 * hidden),
                                                          "attn.c_proj": (hidden, hidden), "mlp.c_fc": (hidden, inner),
                                                          "mlp.c_proj": (inner, hidden)}.items()}
        result = {f"{name}.weight": shape for name, shape in sizes.items()}
        return result | {f"{name}.bias": shape[-1:] for name, shape in sizes.items() if name not in ("wte", "wpe")}
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = {"input_layernorm": (hidden,), "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
             "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden), "post_attention_layernorm": (hidden,),
             "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    result = {"embed_tokens": (config["vocab_size"], hidden), "norm": (hidden,)}
    result |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    return {f"model.{name}.weight": shape for name, shape in result.items()}


def write_model(folder, config):
    """fp32; the same megabytes again and again, of a length that no row has."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    block = numpy.random.default_rng(0).standard_normal(4_999_999, numpy.float32)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes(config).items():
        end = at + 4 * int(numpy.prod(shape))
        header[name], at = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}, end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, at // 4, block.size):
            block[:at // 4 - begin].tofile(out)
    return at


def same_tensors(one, other):
    """Of two safetensors files, in whatever order they have them."""
    def opened(path):
        data = numpy.memmap(path, numpy.uint8, "r")
        size = int.from_bytes(data[:8].tobytes(), "little")
        entries = json.loads(data[8:8 + size].tobytes())
        return {name: data[8 + size:][slice(*entry["data_offsets"])] for name, entry in entries.items() if name != "__metadata__"}
    ours, theirs = opened(one), opened(other)
    plain = {name.removeprefix("transformer."): data for name, data in ours.items()}
    return plain.keys() == theirs.keys() and all(
        numpy.array_equal(plain[name][at:at + (1 << 24)], data[at:at + (1 << 24)])
        for name, data in theirs.items() for at in range(0, data.size, 1 << 24))


# How many of the largest tensor a conversion holds: none if it can be copied, else one, and half a tensor is one of two gates.
@pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="converts 2 to 3 GB five times; needs TERATRON_LONG_TESTS")
@pytest.mark.parametrize("name, on_import, on_export", [("embedding", 0, 0), ("gates", 0, 1), ("transposed", 1, 1)])
def test_memory_is_at_most_one_tensor(tmp_path, name, on_import, on_export):
    size = write_model(tmp_path / "in", WIDE[name])
    ours = {**shapes(WIDE[name]), "gate and up": (2 * WIDE[name].get("intermediate_size", 0), 1024)}
    largest = 4 * max(int(numpy.prod(shape)) for shape in ours.values())
    assert largest > 1 << 30
    start, _ = measured("ckpt", "--help")

    def convert(what, tensors, *arguments):
        memory, seconds = measured("ckpt", "convert", *arguments)
        print(f"{name}, {what}: {size / 1e9:.2f} GB in {seconds:.1f} s, {size / seconds / 1e9:.2f} GB/s, peak {memory / 1e6:.0f} MB, "
              f"largest tensor {largest / 1e6:.0f} MB")
        assert memory - start < tensors * largest + (256 << 20)

    convert("from Hugging Face", on_import, "--from-hf", tmp_path / "in", "--save", tmp_path / "ckpt")
    convert("to Hugging Face", on_export, "--load", tmp_path / "ckpt", "--to-hf", tmp_path / "out", "--max-shard-size", "100GB")
    assert same_tensors(tmp_path / "out" / "model.safetensors", tmp_path / "in" / "model.safetensors")
    shutil.rmtree(tmp_path / "out")
    convert("to bf16", on_export, "--load", tmp_path / "ckpt", "--to-hf", tmp_path / "half", "--target-params-dtype", "bf16")
    shutil.rmtree(tmp_path / "half")
    convert("to Megatron-LM", 0, "--load", tmp_path / "ckpt", "--to-megatron", tmp_path / "back",
            "--target-tensor-parallel-size", 2)
    shutil.rmtree(tmp_path / "ckpt")
    convert("from Megatron-LM to Hugging Face", on_export, "--from-megatron", tmp_path / "back", "--to-hf", tmp_path / "out",
            "--max-shard-size", "100GB")
    assert same_tensors(tmp_path / "out" / "model.safetensors", tmp_path / "in" / "model.safetensors")


LITTLE = {**LLAMA, "hidden_size": 256, "intermediate_size": 8192, "vocab_size": 4000, "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def little(tmp_path_factory):
    """33 MB, as a Hugging Face folder and as a checkpoint."""
    folder = tmp_path_factory.mktemp("little")
    write_model(folder / "hf", LITTLE)
    teratron("ckpt", "convert", "--from-hf", folder / "hf", "--save", folder / "ours")
    return folder


@pytest.mark.parametrize("source, target, delay", [
    (["--from-hf", "hf"], "--save", 110), (["--load", "ours"], "--to-hf", 110), (["--load", "ours"], "--to-megatron", 25),
    (["--from-hf", "hf"], "--to-megatron", 25)])
def test_a_terminal_shows_the_progress(little, tmp_path, source, target, delay):
    terminal = TerminalSession("ckpt", "convert", source[0], little / source[1], target, tmp_path / "out",
                               TERATRON_FAULT=f"file.write:delay={delay}")
    assert terminal.exit_code() == 0
    shown = re.findall(r"(?:converted|written) (\d+\.\d\d) of 0\.03 GB \((\d+) %, \d+\.\d\d GB/s\)", terminal.output)
    percent = [int(share) for _, share in shown]
    assert len(percent) >= 2 and percent == sorted(percent) and percent[-1] <= 100, terminal.output
    assert not [line for line in terminal.screen.lines if "GB/s" in line], "it is erased in the end"
    assert terminal.screen.lines[-1] == "" and [line for line in terminal.screen.lines if line.startswith("wrote ")]


@pytest.mark.parametrize("source, target", [(["--from-hf", "hf"], "--save"), (["--load", "ours"], "--to-hf"),
                                            (["--from-hf", "hf"], "--to-megatron")])
def test_an_interruption_leaves_nothing_that_looks_whole(little, tmp_path, source, target):
    command = ["ckpt", "convert", source[0], little / source[1], target, tmp_path / "out"]
    for number in (signal.SIGINT, signal.SIGTERM):
        assert interrupted(command, tmp_path, "file.write@hit=4:delay=60000", number) == ({"out"} if target == "--save" else set())
    left = interrupted(command, tmp_path, "file.write@hit=4:delay=60000", signal.SIGKILL)
    assert not left & {"config.json", "manifest.json", "latest_checkpointed_iteration.txt", "iter_0000000"}, left
    assert target == "--save" or "out" not in left, left
    assert [name for name in left if ".partial-" in name]
    teratron(*command)
    assert not list(tmp_path.rglob("*.partial-*")), "the next command sweeps"


def test_two_conversions_into_one_folder(little, tmp_path):
    command = ["ckpt", "convert", "--load", little / "ours", "--to-hf", tmp_path / "out"]
    first = subprocess.Popen([BINARY, *map(str, command)], stdout=subprocess.DEVNULL, env=environment("file.write@hit=4:delay=3000"))
    wait_for(lambda: list(tmp_path.glob("out.partial-*")), "the first")
    message(teratron(*command, code=2), "another process is writing to it", tmp_path / "out")
    assert first.wait(timeout=30) == 0 and (tmp_path / "out" / "config.json").exists()


@pytest.mark.skipif(not os.environ.get("TERATRON_LONG_TESTS"), reason="takes 20 s; needs TERATRON_LONG_TESTS")
def test_a_log_has_a_line_every_ten_seconds(little, tmp_path):
    said = teratron("ckpt", "convert", "--load", little / "ours", "--to-hf", tmp_path / "out", fault="file.write:delay=1600")
    assert re.findall(r"notice: written 0\.\d\d of 0\.03 GB \(\d+ %, 0\.00 GB/s\)", said.stdout + said.stderr)
