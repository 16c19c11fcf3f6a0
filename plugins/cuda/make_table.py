"""Write kernel_table.cpp, which puts compiled kernels into a library.

    python make_table.py OUT.cpp [FOLDER]

Owns: the step from a folder with manifest.json and cubins (see plugins/triton/launch.md) to one
C++ file; without a folder, a table with no kernels. Guarantees: a manifest of another format or
operator version, or a cubin that is not the one the manifest means, is refused. Needs nothing but
Python; the cubins are taken in by the assembler, so a large table compiles as fast as a small one.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

MANIFEST_FORMAT = 1
OPERATOR_VERSION = 2

HEADER = """// Written by make_table.py from {source}. Do not edit.
#include "kernel_table.h"

"""

IMAGE = """asm(".section .rodata\\n.balign 64\\nedgekv_cubin_{index}:\\n"
    ".incbin {path}\\n.byte 0\\n.previous\\n");
extern "C" const unsigned char edgekv_cubin_{index}[] __attribute__((visibility("hidden")));
"""


def quoted(text: str) -> str:
    """A C string literal."""
    return json.dumps(text, ensure_ascii=True)


def variant_rows(index: int, entry: dict[str, Any], folder: Path) -> tuple[str, str]:
    """The definitions an entry needs, and its row of the table."""
    path = (folder / entry["file"]).resolve()
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        raise SystemExit(f"{path} is not the file that the manifest names")
    names = [f"{{{quoted(a['name'])}, {quoted(a['type'])}}}" for a in entry["args"]]
    definitions = IMAGE.format(index=index, path=quoted(quoted(str(path)))[1:-1])
    args = f"constexpr edgekv::cuda::ArgumentEntry kArgs{index}[]"
    definitions += f"{args} = {{{', '.join(names)}}};\n"
    arch = int(entry["arch"].removeprefix("sm_"))
    fields = [
        quoted(entry["kernel"]), quoted(entry["config"]),
        str(entry["head_dim"]), str(entry["page_size"]),
        quoted(entry["query_dtype"]), quoted(entry["pool_dtype"]),
        "true" if entry["softcap"] else "false", str(entry["block_m"]), str(entry["block_n"]),
        str(arch), quoted(entry["symbol"]), str(entry["num_warps"]), str(entry["shared_bytes"]),
        f"edgekv_cubin_{index}", f"kArgs{index}", str(len(entry["args"])),
    ]  # fmt: skip
    return definitions, f"    {{{', '.join(fields)}}},\n"


def table(folder: Path | None) -> str:
    """The whole file."""
    rows: list[str] = []
    text = HEADER.format(source="no folder" if folder is None else "manifest.json")
    if folder is not None:
        manifest = json.loads((folder / "manifest.json").read_text())
        wanted = (MANIFEST_FORMAT, OPERATOR_VERSION)
        found = (manifest["format"], manifest["operator_version"])
        if found != wanted:
            raise SystemExit(
                f"manifest format and operator version must be {wanted}, these are {found}"
            )
        for index, entry in enumerate(manifest["variants"]):
            definitions, row = variant_rows(index, entry, folder)
            text += definitions
            rows.append(row)
    text += "\nnamespace edgekv::cuda {\n\nKernelTable kernel_table() {\n"
    if rows:
        text += f"  static const Variant variants[] = {{\n{''.join(rows)}  }};\n"
        text += f"  return {{variants, {len(rows)}}};\n"
    else:
        text += "  return {nullptr, 0};\n"
    return text + "}\n\n}  // namespace edgekv::cuda\n"


def main() -> None:
    """Write the file named first, from the folder named second."""
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: make_table.py OUT.cpp [FOLDER]")
    folder = Path(sys.argv[2]) if len(sys.argv) == 3 else None
    Path(sys.argv[1]).write_text(table(folder))


if __name__ == "__main__":
    main()
