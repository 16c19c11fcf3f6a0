"""Executors run exported graphs, one module per library; each is imported when it is chosen."""

from edgekv.executors.base import DecoderExecutor, EngineSource, Progress, VisionExecutor
from edgekv.executors.devices import Device, DeviceReport, choose_device, device_reports
from edgekv.executors.factory import create_decoder, create_vision
from edgekv.executors.signature import decoder_signature, vision_signature

__all__ = [
    "DecoderExecutor",
    "Device",
    "DeviceReport",
    "EngineSource",
    "Progress",
    "VisionExecutor",
    "choose_device",
    "create_decoder",
    "create_vision",
    "decoder_signature",
    "device_reports",
    "vision_signature",
]
