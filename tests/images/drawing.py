"""Images of many sizes and modes that the tests make, and the program that reads them."""

import io
import json
import os
import struct
import subprocess
import zlib

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

BINARY = os.environ.get("TERATRON_BINARY")
needs_binary = pytest.mark.skipif(not BINARY, reason="TERATRON_BINARY names no built program")
BYTES = {"do_rescale": False, "do_normalize": False}


def data_image(folder, files, settings, *flags):
    """Runs `teratron data image`; returns the finished process and the tensors, or None."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model/preprocessor_config.json").write_text(json.dumps(settings))
    output = folder / "out.safetensors"
    output.unlink(missing_ok=True)
    done = subprocess.run([BINARY, "data", "image", *map(str, files), "--hf", str(folder / "model"), "--output", str(output), *flags],
                          capture_output=True, text=True, timeout=60)
    left = sorted(path.name for path in folder.glob("out*"))
    assert left == (["out.safetensors"] if done.returncode == 0 else []), left
    return done, load_file(output) if output.exists() else None


def tensors(folder, files, settings, *flags):
    done, found = data_image(folder, files, settings, *flags)
    assert done.returncode == 0, done.stderr
    return found


def smooth(random, width, height, channels=3):
    """A picture with large shapes, edges and some noise."""
    y, x = np.mgrid[:height, :width]
    picture = np.zeros((height, width, channels))
    for c in range(channels):
        a, b, d, e = random.uniform(-0.2, 0.2, 2).tolist() + random.uniform(0, 6, 2).tolist()
        picture[..., c] = 127 + 100 * np.sin(a * x + b * y + d) + 20 * ((x * e + y) % 16 > 8)
    return np.clip(picture + random.normal(0, 8, picture.shape), 0, 255).astype(np.uint8)


def noise(random, width, height, channels=3):
    """Strong contrast: 0 and 255, and some others."""
    values = random.choice([0, 0, 255, 255, 17, 200], (height, width, channels))
    return values.astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def png(samples, depth, color, interlaced=False, before=(), after=()):
    """A PNG of samples [height, width, channels] below 2^depth, with chunks before and after the pixels."""
    height, width, _ = samples.shape

    def lines(part):
        for row in part:
            flat = row.reshape(-1)
            if depth == 16:
                yield b"\0" + flat.astype(">u2").tobytes()
            else:
                bits = ((flat[:, None] >> np.arange(depth)[::-1]) & 1).astype(np.uint8)
                yield b"\0" + np.packbits(bits).tobytes()

    parts = [samples[top::down, left::across] for left, top, across, down in PASSES] if interlaced else [samples]
    pixels = b"".join(line for part in parts if part.size for line in lines(part))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *before, chunk(b"IDAT", zlib.compress(pixels)), *after, chunk(b"IEND", b"")])


def exif_data(orientation, order="<"):
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(order + "IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)


def saved(picture, form, **options):
    stream = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(stream, form, **options)
    return stream.getvalue()
