"""Values of `teratron data image` against transformers' processors, for images of many sizes."""

import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from drawing import BYTES, data_image, needs_binary, noise, saved, smooth, tensors
from PIL import Image
from safetensors.numpy import load_file

pytestmark = needs_binary
FIXTURES = Path(__file__).parents[1] / "fixtures/vision"
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
LLAVA = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
CASES = {
    "clip": ("CLIP", {}),
    "clip-336": ("CLIP", {"size": 336, "crop_size": 336}),
    "clip-exact": ("CLIP", {"size": {"height": 30, "width": 50}, "do_center_crop": False}),
    "clip-bilinear": ("CLIP", {"size": {"shortest_edge": 100}, "crop_size": {"height": 131, "width": 77}, "resample": 2}),
    "clip-both-edges": ("CLIP", {"size": {"shortest_edge": 100, "longest_edge": 140}}),
    "clip-at-most": ("CLIP", {"size": {"max_height": 100, "max_width": 140}}),
    "clip-unscaled": ("CLIP", {"do_resize": False, "do_rescale": False}),
    "clip-signed": ("CLIP", {"do_normalize": False, "rescale_factor": 1 / 127.5}),
    "llava": ("Llava", LLAVA),
    "llava-pad": ("Llava", {"do_pad": True, **LLAVA}),
    "siglip": ("Siglip", {}),
    "siglip-384": ("Siglip", {"size": {"height": 384, "width": 384}}),
    "vit": ("ViT", {}),
    "vit-100": ("ViT", {"size": 100, "image_mean": 0.3, "image_std": 0.2}),
    "qwen2": ("Qwen2VL", {}),
    "qwen2-small": ("Qwen2VL", {"min_pixels": 3136, "max_pixels": 20000}),
    "qwen3": ("Qwen2VL", {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, **HALF}),
    "qwen-odd": ("Qwen2VL", {"patch_size": 7, "merge_size": 3, "temporal_patch_size": 1}),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """[(path, pixels)]: tiny, long, of sizes that are special to a processor, and of random ones."""
    random, folder = np.random.default_rng(6), tmp_path_factory.mktemp("pictures")
    sizes = [(1, 1), (2, 3), (5, 40), (200, 3), (64, 48), (97, 61), (224, 224), (224, 300), (500, 333), (333, 900), (28, 28), (56, 30)]
    sizes += random.integers(1, 400, (18, 2)).tolist()
    found = []
    for i, (width, height) in enumerate(sizes):
        pixels = (noise if i % 2 else smooth)(random, width, height)
        path = folder / f"{i}.png"
        path.write_bytes(saved(pixels, "PNG"))
        found.append((path, pixels))
    return found


def of_transformers(processor, pictures):
    outputs = [processor(Image.fromarray(pixels), return_tensors="np", input_data_format="channels_last") for _, pixels in pictures]
    return {name: np.concatenate([np.asarray(output[name]) for output in outputs]) for name in outputs[0]}


def compare(folder, kind, settings, pictures, flags=()):
    settings = json.loads(json.dumps(settings))
    processor = getattr(transformers, kind)(**settings)
    expected = of_transformers(processor, pictures)
    found = tensors(folder, [path for path, _ in pictures], json.loads(processor.to_json_string()), *flags)
    assert found.keys() == expected.keys()
    assert found["pixel_values"].dtype == np.float32 and found["pixel_values"].shape == expected["pixel_values"].shape
    assert np.abs(found["pixel_values"] - expected["pixel_values"]).max() <= 1e-6
    if "image_grid_thw" in expected:
        assert (found["image_grid_thw"] == expected["image_grid_thw"]).all()


@pytest.mark.parametrize("case", CASES)
def test_slow_processors(case, tmp_path, pictures):
    kind, settings = CASES[case]
    compare(tmp_path, f"{kind}ImageProcessorPil", settings, pictures)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="the fast processors need torchvision")
@pytest.mark.parametrize("case", [case for case in CASES if "qwen-odd" not in case and "signed" not in case])
def test_fast_processors(case, tmp_path, pictures):
    kind, settings = CASES[case]
    compare(tmp_path, f"{kind}ImageProcessor", settings, pictures, ["--image-resize", "torchvision"])


@pytest.mark.parametrize("name", ["processor_config.json", "preprocessor_config.json"])
def test_files_that_transformers_writes(name, tmp_path, pictures):
    path, pixels = pictures[5]
    processor = transformers.CLIPImageProcessorPil(size=40, crop_size=40)
    content = json.loads(processor.to_json_string())
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / name).write_text(json.dumps({"image_processor": content} if name[:4] == "proc" else content))
    if name[:4] == "proc":  # comes first
        (tmp_path / "hf/preprocessor_config.json").write_text('{"image_processor_type": "SiglipImageProcessor"}')
    done, _ = data_image(tmp_path, [path], content)
    assert done.returncode == 0
    expected = of_transformers(processor, [(path, pixels)])["pixel_values"]
    assert np.abs(load_file(tmp_path / "out.safetensors")["pixel_values"] - expected).max() <= 1e-6


PROCESSORS = {"clip": "CLIP", "siglip": "Siglip", "llava_pad": "Llava", "qwen2_vl": "Qwen2VL"}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_fixtures(kind, tmp_path):
    manifest = json.loads((FIXTURES / "manifest.json").read_text())
    expected = load_file(FIXTURES / "expected.safetensors")
    settings = {"image_processor_type": PROCESSORS[kind] + "ImageProcessor", **manifest["settings"][kind]}
    names = [name for name in manifest["images"] if f"{kind}/{name}" in expected and name != "gray16.png"]
    assert len(names) > 20
    found = tensors(tmp_path, [FIXTURES / "images" / name for name in names], {**settings, **BYTES})
    pixels = found["pixel_values"]
    if kind == "qwen2_vl":
        assert found["image_grid_thw"].tolist() == [manifest["images"][name]["image_grid_thw"] for name in names]
        pixels = pixels.reshape(-1, 3, 2, 196)
        assert (pixels[:, :, 0] == pixels[:, :, 1]).all()
        pixels = np.split(pixels[:, :, 0].reshape(-1, 588), np.cumsum([len(expected[f"{kind}/{name}"]) for name in names])[:-1])
    wrong = [name for name, values in zip(names, pixels) if (values != expected[f"{kind}/{name}"]).any()]
    assert not wrong
    for style, key in (("pillow13", "pixel_values"), ("torchvision", "fast_pixel_values")):
        if (values := expected.get(f"{kind}/rgb.png/{key}")) is not None:
            one = tensors(tmp_path, [FIXTURES / "images/rgb.png"], settings, "--image-resize", style)["pixel_values"]
            assert (one.reshape(values.shape) == values).all()


def test_rgb_bytes_of_fixtures(tmp_path):
    settings = {"image_processor_type": "CLIPImageProcessor", "do_resize": False, "do_center_crop": False, **BYTES}
    manifest = json.loads((FIXTURES / "manifest.json").read_text())["images"]
    for name in ("cmyk.jpg", "exif6.jpg", "palette-transparent.png", "rgb16.png", "420.jpg", "lossless.webp"):
        pixels = tensors(tmp_path, [FIXTURES / "images" / name], settings)["pixel_values"][0]
        assert pixels.shape == (3, manifest[name]["height"], manifest[name]["width"])
        assert hashlib.sha256(pixels.transpose(1, 2, 0).astype(np.uint8).tobytes()).hexdigest() == manifest[name]["rgb_sha256"]


def test_order_of_passes(tmp_path):
    """Before Pillow 13, rows came first; strong contrast shows it where 13 begins with columns."""
    pixels = noise(np.random.default_rng(7), 64, 300)
    (tmp_path / "tall.png").write_bytes(saved(pixels, "PNG"))
    settings = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 20, "width": 40}, **BYTES}
    styles = {style: tensors(tmp_path, [tmp_path / "tall.png"], settings, "--image-resize", style)["pixel_values"][0]
              for style in ("pillow13", "pillow")}
    picture = Image.fromarray(pixels)
    rows_first = picture.resize((40, 300), Image.BICUBIC).resize((40, 20), Image.BICUBIC)
    columns_first = picture.resize((64, 20), Image.BICUBIC).resize((40, 20), Image.BICUBIC)
    assert (styles["pillow"] == np.asarray(rows_first).transpose(2, 0, 1)).all()
    assert (styles["pillow13"] == np.asarray(columns_first).transpose(2, 0, 1)).all()
    assert (styles["pillow"] != styles["pillow13"]).any()
