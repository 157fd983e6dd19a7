#!/usr/bin/env python3
"""Runs the fuzz targets, two at a time, each for some seconds from valid inputs; fails if a target finds anything.

    python tests/fuzz/fuzz.py --build build/fuzz --seconds 5

A failing input is written to <build>/tests/fuzz_*.found; run the target on that file to reproduce it.
"""
import argparse
import base64
import gzip
import io
import json
import lzma
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"


def legacy_index(lengths, documents):
    """The old format of an index of i32 tokens."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    numbers = [1, 4, 4, len(lengths), len(lengths), len(documents), *range(len(lengths) + 1), *ends, *lengths, *documents]
    return b"TNTIDX\0\0" + struct.pack(f"<{len(numbers)}q", *numbers)


def idx_seeds():
    for path in sorted((FIXTURES / "corpora").glob("*.idx")):
        size = path.with_suffix(".bin").stat().st_size
        if size < 65536:
            yield struct.pack("<H", size) + path.read_bytes()
    yield struct.pack("<H", 24) + legacy_index([3, 1, 2], [0, 2, 3])


def jsonl_seeds():
    lines = (FIXTURES / "preprocess/docs.jsonl").read_bytes().split(b"\n")
    yield b"\n".join(lines[:8])
    yield b'{"text": "Dr. No said: \\"Why?\\" He left.", "t": ["a", "\\ud83d\\ude00"]}\n{"text": 1}\n\n{"t'
    yield gzip.compress(lines[0], mtime=0)
    yield lzma.compress(lines[0])


def tokenizer(**parts):
    alphabet = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    vocab = {token: i for i, token in enumerate([*alphabet, "th", "the", "Ġthe"])}
    return json.dumps({"added_tokens": [{"id": 259, "content": "<|endoftext|>", "special": True, "lstrip": True}],
                       "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
                       "model": {"type": "BPE", "vocab": vocab, "merges": ["t h", ["th", "e"], "Ġ the"]},
                       **parts}).encode()


def tokenizer_json_seeds():
    yield tokenizer()
    split = {"type": "Split", "pattern": {"Regex": "[a-z]+|\\s"}, "behavior": "MergedWithNext", "invert": False}
    yield tokenizer(
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            split, {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]},
        post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>"}},
                                                                 {"Sequence": {"id": "A"}}],
                        "special_tokens": {"<|endoftext|>": {"ids": [259]}}})
    vocab = {token: i for i, token in enumerate(["[UNK]", "[CLS]", "[SEP]", "hello", "world", "##s", ",", "caf", "##e"])}
    yield tokenizer(
        added_tokens=[{"id": 0, "content": "[UNK]", "special": True}, {"id": 9, "content": "aaa", "normalized": True}],
        normalizer={"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
        pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        post_processor={"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]},
        model={"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 100, "vocab": vocab})
    yield from piece_tokenizer_seeds()


def piece_tokenizer_seeds():
    """Unigram as T5's, and BPE of characters as Llama 2's."""
    space = "▁"
    # A trie with one key: "a" becomes "b".
    units = {0: 256 << 10, 256 ^ 97: 97 | 1 << 8 | 512 << 10, 256 ^ 97 ^ 512: 1 << 31}
    charsmap = struct.pack("<1025I", 4096, *(units.get(i, 0) for i in range(1024))) + b"b\0"
    yield tokenizer(
        added_tokens=[{"id": 9, "content": "<extra_id_0>", "special": True}],
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()},
            {"type": "Strip", "strip_left": False, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": space}]},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": space, "prepend_scheme": "always", "split": True}]},
        decoder={"type": "Metaspace", "replacement": space, "prepend_scheme": "always", "split": True},
        post_processor={"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
                        "special_tokens": {"</s>": {"ids": [1]}}},
        model={"type": "Unigram", "unk_id": 2, "byte_fallback": False, "vocab": [
            ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], [space, -2.5], ["Hello", -5.0], ["l", -3.0], ["o", -3.5],
            [space + "wor", -6.25], ["e", -3]]})
    tokens = ["<unk>", "<s>", *[f"<0x{byte:02X}>" for byte in range(256)], space, "H", "e", "l", "o", "He", "ll", "Hell"]
    yield tokenizer(
        added_tokens=[{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "<s>", "special": True}],
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": space}, {"type": "Replace", "pattern": {"String": " "}, "content": space}]},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": space}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        model={"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
               "vocab": {token: i for i, token in enumerate(tokens)}, "merges": ["H e", ["l", "l"], "He ll"]})


def field(number, value):
    """One field of a protocol buffer; ints stay below 128, bytes below 16384."""
    if isinstance(value, int):
        return bytes([number << 3 & 0x7f | (0x80 if number > 15 else 0)]) + (bytes([number >> 4]) if number > 15 else b"") + \
            bytes([value])
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    size = bytes([len(value)]) if len(value) < 128 else bytes([len(value) & 0x7f | 0x80, len(value) >> 7])
    return bytes([number << 3 | 2]) + size + value


def sentencepiece_seeds():
    def piece(text, score, kind=1):
        return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))

    pieces = piece("<unk>", 0.0, 2) + piece("<s>", 0.0, 3) + piece("</s>", 0.0, 3)
    words = "".join(piece(w, -i - 1.0).decode("latin-1") for i, w in enumerate(["▁", "a", "l", "o", "lo", "▁the"]))
    pieces += words.encode("latin-1") + piece("world", 0.0, 4) + piece("aa", -1.0, 5)
    for kind in (1, 2):
        yield pieces + field(2, field(3, kind)) + field(3, field(3, 1) + field(4, 0))
    # Rules: one unit that matches nothing.
    yield pieces + field(3, field(2, struct.pack("<I", 8) + struct.pack("<II", 0, 0) + b"x\0"))


def safetensors_seeds():
    header = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
              "b": {"dtype": "BF16", "shape": [3], "data_offsets": [24, 30]},
              "empty": {"dtype": "F16", "shape": [0, 5], "data_offsets": [30, 30]}, "__metadata__": {"format": "pt"}}
    text = json.dumps(header).encode()
    yield struct.pack("<H", 30) + text
    yield struct.pack("<Q", len(text)) + text + bytes(30)
    yield struct.pack("<H", 0) + b"{}"


def safetensors_index_seeds():
    yield json.dumps({"metadata": {"total_size": 60}, "weight_map": {
        "a.w": "a.safetensors", "a.b": "a.safetensors", "b.w": "b.safetensors", "b.b": "b.safetensors"}}).encode()


def manifest_seeds():
    shards = [{"file": f"shard-{i:05}.safetensors", "bytes": size, "header_bytes": 100, "header_hash": "0" * 16}
              for i, size in enumerate((1000, 500))]
    split = {"dim": 1, "segments": [12], "padded": 12, "parts": 2, "index": 0}
    padded = {"dim": 0, "segments": [5], "padded": 8, "parts": 1, "index": 0}

    def part(shard, name, size, **region):
        return {"shard": shard, "name": name, "offset": 100, "bytes": size, "hashes": "0123456789abcdef", **region}

    tensors = {
        "w": {"dtype": "F32", "shape": [4, 12], "parts": [part(0, "w", 96, cut=split, range=[0, 24]), part(
            1, "w", 96, runs=[[12 * row + 6, 6] for row in range(4)])]},
        "e": {"dtype": "F32", "shape": [5, 1], "parts": [part(0, "e", 20, cut=padded, range=[0, 8])]},
        "b": {"dtype": "BF16", "shape": [3], "parts": [part(1, "b", 6, range=[0, 3])]}}
    yield json.dumps({"format": "teratron-checkpoint", "format_version": "1.0", "written_by": "0.1.0", "run_id": "01",
                      "iteration": 7, "sequence": 3, "block_bytes": 4 << 20, "config": {"a": 1}, "state": {},
                      "shards": shards, "tensors": tensors}).encode()


def dist_metadata_seeds():
    with zipfile.ZipFile(ROOT / "tests/fixtures/models/torch_dist.zip") as fixtures:
        for name in fixtures.namelist():
            if name.endswith(".metadata"):
                yield fixtures.read(name)


MODEL = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "max_position_embeddings": 32,
         "micro_batch_size": 2, "lr": 1e-4, "train_iters": 10, "tokenizer_type": "NullTokenizer", "vocab_size": 100}


def config_file_seeds():
    yield (ROOT / "examples/megatron_gpt_config.yaml").read_bytes()
    yield "\n".join([*(f"{name}: {value}" for name, value in MODEL.items()), "mock_data: true", "rampup_batch_size: [8, 8, 64]",
                     "swiglu: yes", "lr_decay_style: cosine", "pipeline_model_parallel_size: 2", "init_method_std: 1e-2",
                     "data_path: ~"]).encode()
    yield b"base: [run.yaml]\nx: &a {b: [1, *a]}\n? y\n: |\n  text\n"
    yield b"megatron_lm_config:\n  megatron_lm_tp_degree: 2\n  megatron_lm_recompute_activations: true\n"


def command_line_seeds():
    def line(first, *more):
        flags = [part for name, value in MODEL.items() for part in ("--" + name.replace("_", "-"), str(value))]
        return bytes([first]) + "\n".join([*flags, *more]).encode()

    yield line(0, "--mock-data")
    yield line(8, "--mock-data", "--bf16", "--tensor-model-parallel-size=2", "--sequence-parallel", "--swiglu", "--no-rope-fusion")
    yield line(24, "--pipeline-model-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "1", "--fp16",
               "--data-path", "0.3", "a", "0.7", "b", "--split", "98,1,1", "--lr-warmup-fraction", "0.1", "--global-batch-size",
               "16")
    yield line(18, "--data-path", "a", "--pipeline-model-parallel-size", "2", "--pipeline-model-parallel-layout",
               "Ett|t|t|L", "--window-size", "(8,0)", "--rotary-percent", "0.5", "--recompute-granularity", "full",
               "--global-batch-size", "16")
    yield line(1, "--load", "x", "--prompt", "a", "--help")


def pickle_seeds():
    values = {"a": [1, -2, 3.5, None, True, "text", b"bytes", (1, 2)], "b": {"c": 1 << 40}, "d": {7}}
    for protocol in range(2, 6):
        yield pickle.dumps(values, protocol)
    storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x06tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x03K\x02\x86K\x01K\x03\x86tR."
    yield tensor
    yield b"cargparse\nNamespace\n)\x81}(U\x01lK\x02U\x01tcmegatron.core.enums\nModelType\nK\x01\x85Rub."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", tensor)
        archive.writestr("a/data/0", bytes(24))
    yield file.getvalue()
    head = [pickle.dumps(value, 2) for value in (0x1950a86a20f9469cfc6c, 1001, {"little_endian": True})]
    yield b"".join([*head, tensor, pickle.dumps(["0"], 2), (6).to_bytes(8, "little"), bytes(24)])


def http_seeds():
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost:5000\r\nContent-Type: application/json\r\nX: a%20b\r\n"
    yield head + b"Content-Length: 2\r\n\r\n{}GET / HTTP/1.1\r\n"
    yield head + b"Transfer-Encoding: chunked\r\n\r\n4;a=b\r\nWiki\r\nb\r\npedia in chu\r\n0\r\nX-Trailer: 1\r\n\r\nGET"
    yield b"\r\nGET /health HTTP/1.0\r\n\r\n"


def requests_seeds():
    def body(kind, **fields):
        return bytes([kind]) + json.dumps(fields).encode()

    yield body(0, prompts=["a", "b"], tokens_to_generate=4, logprobs=True, temperature=0.5, top_p=0.9, top_p_decay=0.5, top_p_bound=0.1,
               add_BOS=True, stop_on_eol=False, random_seed=1, no_log=True)
    yield body(0, prompts=["a"], beam_width=2, length_penalty=1.5, stop_token=3, tokens_to_generate=3)
    yield body(1, model="m", prompt=["a", "é"], n=2, max_tokens=3, temperature=0, stop=["x"], seed=5, logprobs=2, echo=True)
    yield body(1, prompt=[[1, 2], [200]], stream=True, stream_options={"include_usage": True}, top_k=3, ignore_eos=True)
    yield body(2, messages=[{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]}], max_tokens=5,
               logprobs=True, top_logprobs=1, tools=[], response_format={"type": "text"})
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}
    yield body(2, messages=[{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "1"}], tools=[tool],
               tool_choice="required", parallel_tool_calls=False, response_format={"type": "json_object"}, stream=True)
    yield body(3, tokens=[1, 2], max_new_tokens=3, top_k=2, num_return_sequences=2, stop="a", add_BOS=True)
    yield body(252, input=["a", "é"], model="m", encoding_format="base64")
    yield body(252, input=[[1, 2], [3]], dimensions=None)
    yield body(253, type="object", properties={"a": {"enum": ["x", 1]}, "b": {"type": "array", "items": {"$ref": "#/$defs/c"}, "maxItems": 2}},
               required=["a"], additionalProperties={"type": "string", "maxLength": 3, "format": None}, **{"$defs": {"c": {"anyOf": [{"type": "null"}, {"format": "date"}]}}})
    yield b"\xfe\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}\"]}}\n</tool_call> and <tool_call>"
    yield b"\xff<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\"}"


def picture(*shape):
    from PIL import Image
    return Image.frombytes("RGBA"[:shape[2]] if shape[2] > 1 else "L", shape[1::-1], bytes(i * 37 % 256 for i in range(shape[0] * shape[1] * shape[2])))


def encoded(image, form, **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"


def jpeg_seeds():
    yield encoded(picture(9, 17, 3), "JPEG", exif=TURNED)
    yield encoded(picture(8, 8, 1), "JPEG", progressive=True)
    yield encoded(picture(16, 16, 3), "JPEG", progressive=True, restart_marker_blocks=1, xmp=b'tiff:Orientation="8"')
    yield encoded(picture(5, 5, 4).convert("CMYK"), "JPEG", subsampling=0)


def png_seeds():
    for channels in (1, 3, 4):
        yield encoded(picture(5, 7, channels), "PNG", exif=TURNED)
    yield encoded(picture(5, 7, 3).quantize(7), "PNG", transparency=2)
    yield encoded(picture(5, 7, 1).convert("1"), "PNG", transparency=0)
    yield encoded(picture(5, 7, 1).convert("I;16"), "PNG")


def webp_seeds():
    for channels in (3, 4):
        yield encoded(picture(9, 17, channels), "WEBP", exif=TURNED)
        yield encoded(picture(9, 17, channels), "WEBP", lossless=True)
    yield encoded(picture(9, 17, 4), "WEBP", save_all=True, append_images=[picture(9, 17, 3).convert("RGBA")])


def image_processor_seeds():
    def keys(kind, **settings):
        return json.dumps({"image_processor_type": kind + "ImageProcessor", **settings}).encode()

    yield keys("CLIP", size={"shortest_edge": 20}, crop_size={"height": 20, "width": 24}, resample=3, do_center_crop=True)
    yield keys("Llava", size=20, crop_size=21, do_pad=True, image_mean=[0.1, 0.2, 0.3], image_std=0.5, do_resize=True)
    yield keys("Siglip", size={"height": 9, "width": 12}, rescale_factor=0.01, do_rescale=True, do_normalize=False)
    yield keys("ViT", size={"shortest_edge": 10, "longest_edge": 30}, resample=2)
    yield keys("CLIP", size={"max_height": 10, "max_width": 30}, do_center_crop=False)
    yield keys("Qwen2VL", min_pixels=56, max_pixels=5000, patch_size=3, temporal_patch_size=2, merge_size=2)


SEEDS = {"fuzz_command_line": command_line_seeds, "fuzz_config_file": config_file_seeds, "fuzz_http": http_seeds, "fuzz_idx": idx_seeds,
         "fuzz_dist_metadata": dist_metadata_seeds, "fuzz_image_processor": image_processor_seeds, "fuzz_jpeg": jpeg_seeds,
         "fuzz_png": png_seeds, "fuzz_webp": webp_seeds, "fuzz_jsonl": jsonl_seeds, "fuzz_manifest": manifest_seeds, "fuzz_pickle": pickle_seeds,
         "fuzz_requests": requests_seeds, "fuzz_safetensors": safetensors_seeds,
         "fuzz_safetensors_index": safetensors_index_seeds, "fuzz_sentencepiece": sentencepiece_seeds,
         "fuzz_tokenizer_json": tokenizer_json_seeds}


def run(target, seconds, folder):
    corpus = pathlib.Path(folder) / target.name
    corpus.mkdir()
    for i, seed in enumerate(SEEDS[target.name]()):
        (corpus / str(i)).write_bytes(seed)
    return subprocess.run(
        [target, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=3000", "-verbosity=0", "-print_final_stats=1",
         f"-artifact_prefix={target}.found", corpus],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
             "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/fuzz")
    parser.add_argument("--seconds", type=int, default=5)
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda name: run(args.build / "tests" / name, args.seconds, folder), SEEDS)
        for name, done in zip(SEEDS, runs):
            executions = [line.split()[-1] for line in done.stdout.splitlines() if "number_of_executed_units" in line]
            print(f"{name}: {executions[0] if executions else '?'} inputs in {args.seconds} s, "
                  f"{'nothing found' if done.returncode == 0 else 'FAILED'}")
            if done.returncode != 0:
                failed = True
                print(done.stdout[-6000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
