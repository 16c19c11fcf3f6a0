import subprocess
import sys

HEAVY = ("cv2", "onnxruntime", "onnx", "torch", "transformers", "tensorrt", "PIL", "tokenizers")


def test_importing_edgekv_loads_no_heavy_library() -> None:
    code = f"import sys, edgekv; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_had() -> None:
    import edgekv

    for name in edgekv.__all__:
        assert getattr(edgekv, name) is not None
