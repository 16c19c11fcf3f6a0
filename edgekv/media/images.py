"""One still picture as RGB, whatever its file holds.

Owns: how pictures of other modes become 8-bit RGB.
Guarantees: a C-contiguous (height, width, 3) uint8 array, turned as its EXIF orientation asks;
what lies under full transparency never shows. Transparency is laid over white, as Hugging Face's
``convert_to_rgb`` does, so that a model sees what it was trained on.
Does not know: order, time.

16-bit pictures keep their high byte, 32-bit and float ones are scaled by their range. Colour
profiles are ignored. Animated pictures give their first frame.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from edgekv.regular_file import open_regular


def read_image(path: Path) -> NDArray[np.uint8] | None:
    """(height, width, 3) RGB, or None when the file is no whole picture."""
    try:
        with open_regular(path) as file, Image.open(file) as image:
            # pillow before 11 widens 16-bit grey to 32 bits; a png has no more than 16.
            is_wide_png = image.format == "PNG" and image.mode == "I"
            upright = ImageOps.exif_transpose(image)
            return image_to_rgb(upright.convert("I;16") if is_wide_png else upright)
    except MemoryError:
        raise
    except Exception:
        return None


def image_to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """(height, width, 3) RGB of a picture of any mode."""
    if image.mode.startswith(("I", "F")):
        grey = _to_8_bit(np.asarray(image))
        return np.ascontiguousarray(np.broadcast_to(grey[..., None], (*grey.shape, 3)))
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        above = image.convert("RGBA")
        white = Image.new("RGBA", above.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, above)
    return np.array(image.convert("RGB"))


def _to_8_bit(grey: NDArray[Any]) -> NDArray[np.uint8]:
    """16, 32-bit or float grey (height, width) as uint8."""
    if grey.dtype.kind == "u" and grey.dtype.itemsize == 2:
        high: NDArray[np.uint8] = (grey >> 8).astype(np.uint8)
        return high
    values = np.nan_to_num(grey.astype(np.float64))
    spans = (1.0, 255.0, 65535.0) if grey.dtype.kind == "f" else (255.0, 65535.0)
    top = float(values.max())
    span = next((span for span in spans if top <= span), top)
    scaled: NDArray[np.uint8] = np.clip(values * (255.0 / span), 0, 255).astype(np.uint8)
    return scaled
