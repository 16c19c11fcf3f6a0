"""Still pictures of every mode, and folders of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgekv.errors import SourceError
from edgekv.media import open_video
from edgekv.media.folder import natural_key
from edgekv.types import Frame
from tests.media import clips

RNG = np.random.default_rng(5)
GREY = np.linspace(0, 255, 12 * 10, dtype=np.uint8).reshape(12, 10)
COLOUR = RNG.integers(0, 256, (12, 10, 3), np.uint8)


def read(path: Path) -> Frame:
    with open_video(path, fps=None) as source:
        (frame,) = source
    assert frame.pixels.dtype == np.uint8
    assert frame.pixels.flags.c_contiguous
    assert frame.pixels.shape[2] == 3
    return frame


def over_white(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., None] / 255
    return np.rint(rgb * share + 255 * (1 - share))


def grey_rgb(values: np.ndarray) -> np.ndarray:
    return np.repeat(values[..., None], 3, axis=-1)


def test_colour(tmp_path: Path) -> None:
    Image.fromarray(COLOUR).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png").pixels, COLOUR)


def test_grey(tmp_path: Path) -> None:
    Image.fromarray(GREY).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png").pixels, grey_rgb(GREY))


def test_black_and_white(tmp_path: Path) -> None:
    Image.fromarray(GREY > 128).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png").pixels, grey_rgb((GREY > 128) * np.uint8(255)))


@pytest.mark.parametrize("suffix", ["png", "webp", "tif"])
def test_noise_under_transparency_never_shows(tmp_path: Path, suffix: str) -> None:
    alpha = np.zeros((12, 10), np.uint8)
    alpha[:, 5:8], alpha[:, 8:] = 255, 100
    image = Image.fromarray(np.dstack([COLOUR, alpha]))
    image.save(tmp_path / f"a.{suffix}", lossless=True, exact=True)
    pixels = read(tmp_path / f"a.{suffix}").pixels
    assert (pixels[:, :5] == 255).all()
    assert np.abs(pixels - over_white(COLOUR, alpha)).max() <= 1


def test_grey_with_alpha(tmp_path: Path) -> None:
    alpha = np.where(GREY < 100, 0, 255).astype(np.uint8)
    Image.fromarray(np.dstack([GREY, alpha])).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png").pixels, over_white(grey_rgb(GREY), alpha))


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.fromarray(GREY // 64).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    image.save(tmp_path / "a.png")
    table = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]], np.uint8)
    assert np.array_equal(read(tmp_path / "a.png").pixels, table[GREY // 64])
    image.save(tmp_path / "b.png", transparency=1)
    table[1] = 255
    assert np.array_equal(read(tmp_path / "b.png").pixels, table[GREY // 64])


def test_16_bit_grey(tmp_path: Path) -> None:
    values = RNG.integers(0, 65536, (12, 10)).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    Image.fromarray(values).save(tmp_path / "a.tif")
    Image.fromarray(values.astype(">u2")).save(tmp_path / "b.tif")
    for name in ("a.png", "a.tif", "b.tif"):
        assert np.array_equal(
            read(tmp_path / name).pixels, grey_rgb((values >> 8).astype(np.uint8))
        )


def test_16_bit_colour(tmp_path: Path) -> None:
    import cv2

    values = RNG.integers(0, 65536, (12, 10, 3)).astype(np.uint16)
    cv2.imwrite(str(tmp_path / "a.png"), values[..., ::-1])
    pixels = read(tmp_path / "a.png").pixels
    assert np.abs(pixels.astype(int) - (values >> 8)).max() <= 1


def test_32_bit_and_float(tmp_path: Path) -> None:
    Image.fromarray(GREY.astype(np.int32)).save(tmp_path / "a.tif")
    assert np.array_equal(read(tmp_path / "a.tif").pixels, grey_rgb(GREY))
    Image.fromarray((GREY / 255).astype(np.float32)).save(tmp_path / "b.tif")
    error = read(tmp_path / "b.tif").pixels.astype(int) - grey_rgb(GREY)
    assert np.abs(error).max() <= 1


def test_cmyk(tmp_path: Path) -> None:
    image = Image.new("CMYK", (32, 32), (0, 255, 255, 0))
    image.save(tmp_path / "a.jpg", quality=98)
    red = read(tmp_path / "a.jpg").pixels.reshape(-1, 3).mean(axis=0)
    assert red == pytest.approx([255, 0, 0], abs=4)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(COLOUR).save(tmp_path / "a.png", exif=exif)
    upright = {
        1: COLOUR,
        2: COLOUR[:, ::-1],
        3: COLOUR[::-1, ::-1],
        4: COLOUR[::-1],
        5: COLOUR.swapaxes(0, 1),
        6: np.rot90(COLOUR, -1),
        7: np.rot90(COLOUR, 2).swapaxes(0, 1),
        8: np.rot90(COLOUR),
    }[orientation]
    assert np.array_equal(read(tmp_path / "a.png").pixels, upright)


@pytest.mark.parametrize("size", [(1, 1), (27, 257), (2, 2000), (400, 800)])
def test_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    pixels = RNG.integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png").pixels, pixels)


def folder(path: Path, names: list[str]) -> Path:
    path.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        Image.fromarray(clips.draw(number)).save(path / name)
    return path


def test_folder_order_and_times(tmp_path: Path) -> None:
    names = ["f1.png", "f2.PNG", "F3.jpg", "f10.png", "f20.bmp", "f100.png"]
    folder(tmp_path, names)
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / ".f0.png").write_bytes(b"hidden")
    (tmp_path / "f5.png").mkdir()
    with open_video(tmp_path) as source:
        frames = list(source)
    assert [clips.read_number(frame.pixels) for frame in frames] == list(range(6))
    assert [frame.time_s for frame in frames] == [i / 2 for i in range(6)]
    assert [frame.index for frame in frames] == list(range(6))


def test_folder_at_its_own_rate(tmp_path: Path) -> None:
    folder(tmp_path, [f"{i}.png" for i in range(30)])
    with open_video(tmp_path, fps=2, folder_fps=10) as source:
        frames = list(source)
    assert [(frame.index, frame.time_s) for frame in frames] == [
        (i, i / 10) for i in range(0, 30, 5)
    ]


def test_unreadable_pictures_in_a_folder_are_skipped_and_counted(tmp_path: Path) -> None:
    folder(tmp_path, [f"{i}.png" for i in range(6)])
    (tmp_path / "0.png").write_bytes(b"")
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes()[:60])
    (tmp_path / "4.png").write_text("text")
    with open_video(tmp_path, fps=None) as source:
        frames = list(source)
    assert [frame.index for frame in frames] == [1, 3, 5]
    assert [frame.time_s for frame in frames] == [0.5, 1.5, 2.5]
    assert source.stats().num_bad_frames == 3


@pytest.mark.parametrize("what", ["gone", "a pipe", "a folder", "a device", "another picture"])
def test_pictures_that_change_while_a_folder_plays(tmp_path: Path, what: str) -> None:
    """None is waited for that will never come."""
    folder(tmp_path, [f"{i}.png" for i in range(4)])
    with open_video(tmp_path, fps=None) as source:
        frames = [next(source)]
        (tmp_path / "1.png").unlink()
        if what == "a pipe":
            os.mkfifo(tmp_path / "1.png")
        elif what == "a folder":
            (tmp_path / "1.png").mkdir()
        elif what == "a device":
            (tmp_path / "1.png").symlink_to("/dev/zero")
        elif what == "another picture":
            Image.fromarray(clips.draw(1)).rotate(90).save(tmp_path / "1.png")
        frames += source
    bad = int(what != "another picture")
    assert [frame.index for frame in frames] == ([0, 2, 3] if bad else [0, 1, 2, 3])
    assert source.stats().num_bad_frames == bad


def test_folders_without_a_picture_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"expected pictures .* found none"):
        open_video(tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(SourceError, match=r"expected pictures .* found 1 other files"):
        open_video(tmp_path)
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(SourceError, match="found 1 that cannot be decoded"):
        open_video(tmp_path)


def test_natural_order() -> None:
    names = ["10", "9", "a10b2", "a10b10", "A2", "", "a", "1a", "01"]
    ordered = sorted(names, key=natural_key)
    assert ordered == ["", "01", "1a", "9", "10", "a", "A2", "a10b2", "a10b10"]
