"""Pixels of `teratron data image` against Pillow's, bit for bit: every mode, depth, format and orientation."""

import struct
import warnings

import numpy as np
from drawing import BYTES, chunk, exif_data, needs_binary, noise, png, saved, smooth, tensors
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb

pytestmark = needs_binary
SIZES = [(1, 1), (2, 3), (7, 5), (8, 8), (17, 9), (33, 40), (64, 61), (96, 17), (31, 96)]
SIDE = 96


def alpha(random, width, height):
    return random.integers(0, 256, (height, width, 1), dtype=np.uint8)


def pngs(random, width, height):
    def samples(depth, channels=1):
        return random.integers(0, 2**depth, (height, width, channels))

    for interlaced in (False, True):
        for depth in (1, 2, 4, 8):
            gray = samples(depth)
            palette = chunk(b"PLTE", random.integers(0, 256, (2**depth, 3), dtype=np.uint8).tobytes())
            shades = random.integers(0, 256, 2**depth, dtype=np.uint8).tobytes()
            yield f"gray{depth}", png(gray, depth, 0, interlaced)
            yield f"palette{depth}", png(gray, depth, 3, interlaced, [palette])
            yield f"translucent{depth}", png(gray, depth, 3, interlaced, [palette, chunk(b"tRNS", shades[:-1])])
            yield f"one-colour{depth}", png(gray, depth, 3, interlaced, [palette, chunk(b"tRNS", b"\xff\x00")])
            yield f"short{depth}", png(gray, depth, 3, interlaced, [palette[:4] and chunk(b"PLTE", palette[8:8 + 3 * 2**(depth - 1)])])
        for depth in (1, 8):
            gray = samples(depth)
            yield f"key{depth}", png(gray, depth, 0, interlaced, [chunk(b"tRNS", struct.pack(">H", gray[0, 0, 0]))])
        rgb = samples(8, 3)
        yield "key", png(rgb, 8, 2, interlaced, [chunk(b"tRNS", struct.pack(">HHH", *rgb[0, 0].tolist()))])
        for depth in (8, 16):
            yield f"rgb{depth}", png(samples(depth, 3), depth, 2, interlaced)
            yield f"rgba{depth}", png(samples(depth, 4), depth, 6, interlaced)
            yield f"gray-alpha{depth}", png(samples(depth, 2), depth, 4, interlaced)


def jpegs(random, width, height):
    for picture in (smooth(random, width, height), noise(random, width, height)):
        for quality in (30, 75, 95, 100):
            for sampling in (0, 1, 2):
                for progressive in (False, True):
                    yield "jpeg", saved(picture, "JPEG", quality=quality, subsampling=sampling, progressive=progressive)
        yield "gray", saved(Image.fromarray(picture).convert("L"), "JPEG")
        yield "as-rgb", saved(picture, "JPEG", keep_rgb=True)
        yield "restarts", saved(picture, "JPEG", restart_marker_blocks=1)
        ink = Image.fromarray(random.integers(0, 256, (height, width, 4), dtype=np.uint8), "CMYK")
        yield "cmyk", saved(ink, "JPEG")
        yield "cmyk", saved(ink, "JPEG", progressive=True, quality=90)


def webps(random, width, height):
    for picture in (smooth(random, width, height), noise(random, width, height)):
        translucent = np.concatenate([picture, alpha(random, width, height)], 2)
        for image in (picture, translucent):
            for quality in (10, 75, 100):
                yield "lossy", saved(image, "WEBP", quality=quality)
            yield "lossless", saved(image, "WEBP", lossless=True)
            yield "exact", saved(image, "WEBP", lossless=True, exact=True)
            yield "animated", saved(Image.fromarray(image), "WEBP", save_all=True, append_images=[Image.fromarray(255 - picture)])


def oriented(random, width, height):
    picture = smooth(random, width, height)
    for orientation in range(10):
        for order in "<>":
            exif = exif_data(orientation, order)
            yield "exif.jpg", saved(picture, "JPEG", exif=b"Exif\0\0" + exif)
            yield "exif.webp", saved(picture, "WEBP", exif=exif)
            yield "exif-before.png", png(picture, 8, 2, False, [chunk(b"eXIf", exif)])
            yield "exif-after.png", png(picture, 8, 2, False, [], [chunk(b"eXIf", exif)])
        xmp = b'<x:xmpmeta tiff:Orientation="%d"/>' % orientation
        yield "xmp.jpg", saved(picture, "JPEG", xmp=xmp)
        yield "xmp.webp", saved(picture, "WEBP", xmp=xmp)
        yield "xmp.png", png(picture, 8, 2, False, [chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)])


def by_pillow(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rgb = convert_to_rgb(ImageOps.exif_transpose(Image.open(path)), return_numpy=True)
    canvas = np.zeros((3, SIDE, SIDE), np.uint8)
    height, width, _ = rgb.shape
    top, left = -((height - SIDE) // 2), -((width - SIDE) // 2)
    canvas[:, top:top + height, left:left + width] = rgb.transpose(2, 0, 1)
    return canvas


def compare(folder, make, seed):
    """Hundreds of images in one call: each is put on a black square."""
    random, names, paths = np.random.default_rng(seed), [], []
    for width, height in SIZES:
        for name, contents in make(random, width, height):
            names.append(f"{name} {width}x{height}")
            paths.append(folder / f"{len(paths)}")
            paths[-1].write_bytes(contents)
    settings = {"image_processor_type": "CLIPImageProcessor", "do_resize": False, "crop_size": SIDE, **BYTES}
    found = tensors(folder, paths, settings)["pixel_values"]
    wrong = [name for name, path, pixels in zip(names, paths, found) if (pixels != by_pillow(path)).any()]
    assert not wrong, f"{len(wrong)} of {len(names)}: {wrong[:20]}"


def test_png(tmp_path):
    compare(tmp_path, pngs, 1)


def test_jpeg(tmp_path):
    compare(tmp_path, jpegs, 2)


def test_webp(tmp_path):
    compare(tmp_path, webps, 3)


def test_orientation(tmp_path):
    compare(tmp_path, oriented, 4)


def test_16_bit_gray_keeps_its_high_byte(tmp_path):
    """Pillow clips it at 255, and does not scale the transparent value of 2 and 4 bits."""
    random = np.random.default_rng(5)
    gray = random.integers(0, 65536, (9, 7, 1))
    (tmp_path / "a").write_bytes(png(gray, 16, 0))
    few = random.integers(0, 4, (9, 7, 1))
    (tmp_path / "b").write_bytes(png(few, 2, 0, before=[chunk(b"tRNS", struct.pack(">H", 2))]))
    settings = {"image_processor_type": "CLIPImageProcessor", "do_resize": False, "do_center_crop": False, **BYTES}
    found = tensors(tmp_path, [tmp_path / "a", tmp_path / "b"], settings)["pixel_values"]
    assert (found[0] == (gray >> 8).transpose(2, 0, 1)).all()
    assert (found[1] == np.where(few == 2, 255, few * 85).transpose(2, 0, 1)).all()
