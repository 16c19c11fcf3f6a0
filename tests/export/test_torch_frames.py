"""Frames as PyTorch tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import edgekv
from edgekv.media.arrays import host_array


def picture() -> torch.Tensor:
    return torch.randint(0, 256, (30, 40, 3), dtype=torch.uint8)


def test_a_tensor_on_the_cpu_is_not_copied() -> None:
    tensor = picture()
    host = host_array(tensor)
    assert host.copied_from == ""
    host.array[0, 0, 0] += 1
    assert int(tensor[0, 0, 0]) == int(host.array[0, 0, 0])


def test_pushed_tensors_are_the_pictures_they_hold(session: edgekv.Session) -> None:
    tensors = [picture(), picture().flip(0), picture().permute(1, 0, 2)]  # strides of their own
    with session.fork() as other:
        for time_s, tensor in enumerate(tensors):
            session.push(tensor, time_s=time_s)
            other.push(tensor.numpy(), time_s=time_s)
        np.testing.assert_array_equal(session.logits("What?"), other.logits("What?"))


def test_planes_first_is_said_to_be_wrong(session: edgekv.Session) -> None:
    with pytest.raises(ValueError, match=r"\(3, 30, 40\) uint8: the channels must come last"):
        session.push(picture().permute(2, 0, 1), time_s=0.0)
