"""The exporter: the only part that needs torch, transformers and onnx. Nothing imports it.

``build.export_bundle`` runs the steps; ``families`` holds what differs between models.
"""
