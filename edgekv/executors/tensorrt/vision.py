"""vision.onnx as a TensorRT engine, one picture at a time.

Owns: the twins of its one input and one output, and its CUDA graph. Guarantees: all memory is taken
at construction. Does not know how pictures are preprocessed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.errors import ExecutorError
from edgekv.executors.cuda import Cuda, Graph
from edgekv.executors.tensorrt.bindings import put, tensor_bytes
from edgekv.executors.tensorrt.decoder import Context
from edgekv.executors.tensorrt.profiles import Dims
from edgekv.executors.twin import Twin, choose_sharing

_FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)


class TensorRTVision:
    """See ``VisionExecutor``."""

    def __init__(
        self,
        context: Context,
        cuda: Cuda,
        *,
        picture: Dims,  # (1, 3, height, width)
        embeds: Dims,  # (1, tokens_per_image, hidden)
        take_error: Callable[[], str],
        release: Callable[[], None],
    ) -> None:
        self._context, self._cuda = context, cuda
        self._picture, self._embeds = picture, embeds
        self._take_error, self._release = take_error, release
        self._graph: Graph | None = None
        self._ran = False
        self._twins: list[Twin] = []
        self._closed = False
        mapped = choose_sharing(cuda.info).kind == "mapped"
        try:
            for name, shape in ((names.PIXEL_VALUES, picture), (names.IMAGE_EMBEDS, embeds)):
                twin = Twin(cuda, tensor_bytes(shape, _FLOAT32), mapped=mapped)
                self._twins.append(twin)
                self._check(context.set_tensor_address(name, twin.address), f"binding {name}")
            self._check(context.set_input_shape(names.PIXEL_VALUES, picture), "shaping pictures")
        except BaseException:
            self.close()
            raise

    def _check(self, went_well: bool, what: str) -> None:
        if not went_well:
            raise ExecutorError(f"TensorRT: {what} failed: {self._take_error()}")

    def encode(self, pixel_values: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, 3, height, width) -> (n, tokens_per_image, hidden)."""
        if self._closed:
            raise ExecutorError("the vision executor is closed")
        if pixel_values.shape[1:] != self._picture[1:]:
            raise ExecutorError(
                f"the vision engine takes pictures {self._picture[1:]}, "
                f"got {pixel_values.shape[1:]}"
            )
        result = np.empty((len(pixel_values), *self._embeds[1:]), np.float32)
        for index, picture in enumerate(pixel_values):
            self._encode_one(picture)
            size = result[index].nbytes
            result[index].reshape(-1)[...] = self._twins[1].host[:size].view(np.float32)
        return result

    def _encode_one(self, picture: NDArray[np.float32]) -> None:
        pixels, embeds = self._twins
        put(pixels.host, 0, picture)
        try:
            pixels.upload(0, picture.nbytes)
            if self._graph is None and self._ran:  # TensorRT wants a plain run before it records
                self._graph = self._cuda.capture(self._execute)
            if self._graph is not None:
                self._graph.launch()
            else:
                self._execute()
                self._ran = True
            embeds.download(int(np.prod(self._embeds)) * 4)
        finally:
            self._cuda.synchronise()

    def _execute(self) -> None:
        self._check(self._context.execute_async_v3(self._cuda.stream), "the vision graph")

    def close(self) -> None:
        """Give buffers and engine back."""
        if self._closed:
            return
        self._closed = True
        if self._graph is not None:
            self._graph.free()
        while self._twins:
            self._twins.pop().free()
        self._release()
