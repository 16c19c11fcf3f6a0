"""A vision tower with its connector as one ONNX graph.

Owns: the trace, with the number of pictures left open.
Guarantees: input and output names of ``edgekv.names``; the output has the tokens the manifest says.
Does not know: which family the module is from.
"""

from __future__ import annotations

import onnx_ir as ir
import torch

from edgekv import names
from edgekv.bundle.manifest import VisionSettings
from edgekv.errors import BundleError
from edgekv.export.decoder import trace
from edgekv.export.graph import tidy

_EXAMPLE_IMAGES = 3


def export_vision(module: torch.nn.Module, settings: VisionSettings, opset: int) -> ir.Model:
    """Trace ``module``, (n, 3, height, width) -> (n, tokens_per_image, hidden). BundleError."""
    pixels = torch.zeros(_EXAMPLE_IMAGES, 3, settings.image.height, settings.image.width)
    with torch.no_grad():
        num_tokens = module(pixels).shape[1]
    if num_tokens != settings.tokens_per_image:
        raise BundleError(
            f"the vision tower gives {num_tokens} tokens for a picture, "
            f"expected {settings.tokens_per_image}"
        )
    model = trace(_Named(module), {names.PIXEL_VALUES: pixels}, _OPEN, opset)
    (output,) = model.graph.outputs
    output.name = names.IMAGE_EMBEDS
    tidy(model)
    return model


class _Named(torch.nn.Module):
    """Gives the module's input the name that the graph shall have."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.module(pixel_values)
        return features


_OPEN = {names.PIXEL_VALUES: {0: torch.export.Dim.DYNAMIC}}
