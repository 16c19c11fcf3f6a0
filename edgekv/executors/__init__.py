"""Executors run exported graphs, one module per library; each is imported when it is chosen."""

from edgekv.executors.base import (
    CrossExecutor,
    DecoderExecutor,
    EncoderExecutor,
    EngineSource,
    Progress,
    VisionExecutor,
)
from edgekv.executors.devices import Device, DeviceReport, choose_device, device_reports
from edgekv.executors.factory import (
    create_cross,
    create_decoder,
    create_encoder,
    create_vision,
)
from edgekv.executors.signature import (
    cross_signature,
    decoder_signature,
    encoder_signature,
    vision_signature,
)

__all__ = [
    "CrossExecutor",
    "DecoderExecutor",
    "Device",
    "DeviceReport",
    "EncoderExecutor",
    "EngineSource",
    "Progress",
    "VisionExecutor",
    "choose_device",
    "create_cross",
    "create_decoder",
    "create_encoder",
    "create_vision",
    "cross_signature",
    "decoder_signature",
    "device_reports",
    "encoder_signature",
    "vision_signature",
]
