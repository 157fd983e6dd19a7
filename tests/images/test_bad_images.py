"""Images that are damaged or hostile: exit code 3 within seconds, a message that names the file, and no output."""

import json
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from drawing import chunk, data_image, needs_binary, png, saved, smooth

pytestmark = needs_binary
BAD = Path(__file__).parents[1] / "fixtures/vision/bad"
CLIP = {"image_processor_type": "CLIPImageProcessor"}


def refused(folder, contents, *reasons, name="bad.png", settings=CLIP, flags=(), code=3):
    """The second of two files is bad."""
    good, bad = folder / "good.png", folder / name
    good.write_bytes(saved(smooth(np.random.default_rng(1), 30, 20), "PNG"))
    bad.write_bytes(contents)
    start = time.monotonic()
    done, _ = data_image(folder, [good, bad], settings, *flags)
    assert time.monotonic() - start < 10
    assert done.returncode == code, (done.returncode, done.stderr)
    for text in (name if code == 3 else "preprocessor_config.json", *reasons):
        assert text in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", sorted(path.name for path in BAD.iterdir()))
def test_fixtures(name, tmp_path):
    refused(tmp_path, (BAD / name).read_bytes(), name=name)


def formats():
    picture = smooth(np.random.default_rng(2), 40, 30)
    return {"jpeg": saved(picture, "JPEG"), "progressive": saved(picture, "JPEG", progressive=True), "png": saved(picture, "PNG"),
            "lossy": saved(picture, "WEBP"), "lossless": saved(picture, "WEBP", lossless=True)}


@pytest.mark.parametrize("kind", formats())
def test_truncated(kind, tmp_path):
    whole = formats()[kind]
    refused(tmp_path, whole[:len(whole) // 2], "Replace the image or remove it from the data")


def test_sizes_are_refused_by_the_header(tmp_path):
    (tmp_path / "few.png").write_bytes(saved(np.zeros((10, 10, 3), np.uint8), "PNG"))
    done, _ = data_image(tmp_path, [tmp_path / "few.png"], CLIP, "--max-image-pixels", "99")
    assert done.returncode == 3 and "100 in all, more than 99" in done.stderr
    jpeg = bytearray(formats()["jpeg"])
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at:at + 4] = struct.pack(">HH", 65535, 65535)
    refused(tmp_path, jpeg, "65500 pixels")
    jpeg[at:at + 4] = struct.pack(">HH", 13000, 13000)  # may be, but its data end
    refused(tmp_path, jpeg, "premature end")


def test_a_bomb_of_zeros(tmp_path):
    """A PNG that would unpack to 256 MiB in a chunk without pixels."""
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 28), 1))
    bomb = png(np.zeros((2, 2, 3), int), 8, 2, False, [text])
    (tmp_path / "bomb.png").write_bytes(bomb)
    start = time.monotonic()
    assert data_image(tmp_path, [tmp_path / "bomb.png"], CLIP)[0].returncode == 0  # it is not read
    assert time.monotonic() - start < 10


def test_many_scans(tmp_path):
    """Each scan of a progressive JPEG visits every block, however short it is."""
    jpeg = saved(np.zeros((8, 8), np.uint8), "JPEG", progressive=True)
    at = jpeg.index(b"\xff\xc2") + 5
    last = jpeg.rindex(b"\xff\xda")
    large = jpeg[:at] + struct.pack(">HH", 12000, 12000) + jpeg[at + 4:last]
    refused(tmp_path, large + jpeg[last:-2] * 499 + b"\xff\xd9")
    refused(tmp_path, jpeg[:last] + jpeg[last:-2] * 501 + b"\xff\xd9", "too many scans")


def test_what_is_no_file(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    for name in ("missing.jpg", "folder.jpg"):
        done, _ = data_image(tmp_path, [tmp_path / name], CLIP)
        assert done.returncode == 3 and name in done.stderr


def test_too_large_a_file(tmp_path):
    with open(tmp_path / "large.png", "wb") as file:
        file.truncate((64 << 20) + 1)
    done, _ = data_image(tmp_path, [tmp_path / "large.png"], CLIP)
    assert done.returncode == 3 and "more than 64 MiB" in done.stderr


def test_images_of_different_sizes_in_one_tensor(tmp_path):
    other = saved(smooth(np.random.default_rng(3), 20, 30), "PNG")
    refused(tmp_path, other, "[3, 336, 224]", "[3, 224, 336]", settings={**CLIP, "do_center_crop": False})


def test_what_a_processor_refuses(tmp_path):
    long = saved(np.zeros((10, 3000, 3), np.uint8), "PNG")
    refused(tmp_path, long, "more than 200 times as long as wide", settings={"image_processor_type": "Qwen2VLImageProcessor"})
    refused(tmp_path, saved(np.zeros((20000, 1, 3), np.uint8), "PNG"), "20000 x 20000",
            settings={"image_processor_type": "LlavaImageProcessor", "do_pad": True})


@pytest.mark.parametrize("settings, says", [
    ({"image_processor_type": "Gemma3ImageProcessor"}, "Gemma3ImageProcessor"),
    ({**CLIP, "do_image_splitting": True}, "do_image_splitting"),
    ({**CLIP, "resample": 1}, "resample"),
    ({**CLIP, "size": {"edge": 3}}, "size"),
])
def test_settings(settings, says, tmp_path):
    refused(tmp_path, saved(np.zeros((4, 4, 3), np.uint8), "PNG"), says, settings=json.loads(json.dumps(settings)), code=2)
