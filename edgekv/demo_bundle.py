"""Where the demo bundle lies: in the source tree, or beside an installed package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from edgekv.errors import BundleError

_MANIFEST = "bundle.json"


def demo_bundle_path() -> Path:
    """Folder of the demo bundle. Raises BundleError when this installation has none."""
    # An editable install has two roots: the source tree and the built files in site-packages.
    package = importlib.util.find_spec(__package__ or "edgekv")
    roots = [Path(root) for root in (package and package.submodule_search_locations) or ()]
    places = [root.parent / "models" / "demo" for root in roots]
    places += [root / "models" / "demo" for root in roots]
    for place in places:
        if (place / _MANIFEST).is_file():
            return place
    raise BundleError(
        "the demo bundle is not part of this installation; name a bundle with --model"
    )
