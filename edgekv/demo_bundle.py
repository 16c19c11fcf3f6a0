"""Where the demo bundle lies: in the source tree, or beside an installed package."""

from __future__ import annotations

from pathlib import Path

from edgekv.errors import BundleError

_MANIFEST = "bundle.json"


def demo_bundle_path() -> Path:
    """Folder of the demo bundle. Raises BundleError when this installation has none."""
    import edgekv

    # An editable install has two roots: the source tree and the built files in site-packages.
    roots = [Path(root) for root in edgekv.__path__]
    places = [root.parent / "models" / "demo" for root in roots]
    places += [root / "models" / "demo" for root in roots]
    for place in places:
        if (place / _MANIFEST).is_file():
            return place
    raise BundleError(
        "the demo bundle is not part of this installation; name a bundle with --model"
    )
