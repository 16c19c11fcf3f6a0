"""Clips for the tests, written with OpenCV and plain bytes.

Every frame carries its own number as pixels, so a test can tell which frame it was given without
trusting the code under test.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

NUM_BITS = 8
WIDTH, HEIGHT = 96, 64


def draw(number: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """A (height, width, 3) RGB picture: ``number`` in binary, a white column for each bit set."""
    pixels = np.full((height, width, 3), (20, 20, 60), np.uint8)
    for bit in range(NUM_BITS):
        if number >> bit & 1:
            pixels[:, bit * width // NUM_BITS : (bit + 1) * width // NUM_BITS] = 255
    return pixels


def read_number(pixels: NDArray[np.uint8]) -> int:
    """The number that ``draw`` drew, at any size."""
    height, width = pixels.shape[:2]
    centres = (np.arange(NUM_BITS) * 2 + 1) * width // (2 * NUM_BITS)
    bits = pixels[height // 2, centres].astype(int).mean(axis=-1) > 128
    return int(sum(1 << int(bit) for bit in np.flatnonzero(bits)))


def write_clip(path: Path, codec: str, fps: float, num_frames: int) -> Path:
    """A numbered clip at a constant rate. OpenCV writes the index of an mp4 at its end."""
    code = cv2.VideoWriter.fourcc(*codec)
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, code, fps, (WIDTH, HEIGHT))
    assert writer.isOpened(), f"this OpenCV cannot write {codec}"
    for number in range(num_frames):
        writer.write(np.ascontiguousarray(draw(number)[..., ::-1]))
    writer.release()
    return path


def jpeg(pixels: NDArray[np.uint8], mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, "JPEG", quality=95)
    return out.getvalue()


def _chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def write_mjpeg_avi(path: Path, jpegs: Sequence[bytes], fps: int) -> Path:
    """An avi whose frames are the bytes given, so that any can be broken or another size."""
    main = struct.pack("<10I16x", 1_000_000 // fps, 0, 0, 0x10, len(jpegs), 0, 1, 0, WIDTH, HEIGHT)
    stream = b"vidsMJPG" + struct.pack("<IHHIIIIIIII", 0, 0, 0, 0, 1, fps, 0, len(jpegs), 0, 0, 0)
    stream += struct.pack("<4H", 0, 0, WIDTH, HEIGHT)
    bitmap = struct.pack("<IiiHH4sIiiII", 40, WIDTH, HEIGHT, 1, 24, b"MJPG", 0, 0, 0, 0, 0)
    streams = _chunk(b"LIST", b"strl" + _chunk(b"strh", stream) + _chunk(b"strf", bitmap))
    header = _chunk(b"LIST", b"hdrl" + _chunk(b"avih", main) + streams)
    movie, index = b"movi", b""
    for data in jpegs:
        index += b"00dc" + struct.pack("<III", 0x10, len(movie), len(data))
        movie += _chunk(b"00dc", data)
    body = b"AVI " + header + _chunk(b"LIST", movie) + _chunk(b"idx1", index)
    path.write_bytes(_chunk(b"RIFF", body))
    return path


def _replace_box(data: bytes, path: Sequence[bytes], new: dict[bytes, bytes]) -> bytes:
    """``data`` (mp4 boxes) with the boxes named in ``new`` below ``path`` given other contents."""
    out, at = b"", 0
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + size]
        if path and name == path[0]:
            body = _replace_box(body, path[1:], new)
        elif not path and name in new:
            body = new[name]
        out += struct.pack(">I4s", len(body) + 8, name) + body
        at += size
    return out


def set_mp4_times(path: Path, times_ms: Sequence[int]) -> None:
    """Give each frame of an mp4 its own time. Needs the index at the end, as written above."""
    steps = np.diff([*times_ms, times_ms[-1] + 40])
    table = struct.pack(">II", 0, len(steps))
    table += b"".join(struct.pack(">II", 1, int(step)) for step in steps)
    total = int(steps.sum())
    data = path.read_bytes().replace(b"edts", b"free")
    media = [b"moov", b"trak", b"mdia"]
    data = _replace_box(data, [*media, b"minf", b"stbl"], {b"stts": table})
    mdhd = struct.pack(">IIIIIHH", 0, 0, 0, 1000, total, 0x55C4, 0)
    path.write_bytes(_replace_box(data, media, {b"mdhd": mdhd}))


def rotate_mp4(path: Path, degrees: int) -> None:
    """Mark an mp4 as filmed with the device turned, as a phone does: in its metadata only."""
    cos, sin = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    matrix = struct.pack(">9i", cos << 16, sin << 16, 0, -sin << 16, cos << 16, 0, 0, 0, 1 << 30)
    data = bytearray(path.read_bytes())
    start = data.index(b"tkhd") + 4 + 40
    data[start : start + 36] = matrix
    path.write_bytes(bytes(data))
