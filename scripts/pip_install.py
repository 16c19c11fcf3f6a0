"""`pip install` for the Makefile: pip's own bars on a terminal, a line for each stage in a log.

Owns: which of pip's lines say what is being done. Runs before anything is installed: nothing but
Python's own library. pip's errors and warnings go to stderr as they are.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
_LARGE_MB = 20
_STAGES = (
    (r" *Installing build dependencies: started", "fetching the build tools"),
    (r"(Collecting|Processing) ", "fetching the packages it needs"),
    (r" *Building editable for (\S+) .*started", "compiling, about half a minute"),
    (r"Installing collected packages: ", "unpacking the packages"),
)


def stage(line: str) -> str | None:
    """What a line of pip's says is being done, None when it is no news."""
    if size := re.match(r" *Downloading (.+?)-\d\S* \((\d+)\.\d MB\)", line):
        name, megabytes = size[1].rpartition("/")[2], int(size[2])
        return f"downloading {name}, {megabytes} MB" if megabytes >= _LARGE_MB else None
    return next((what for pattern, what in _STAGES if re.match(pattern, line)), None)


def main(arguments: list[str]) -> int:
    """pip's exit code."""
    if sys.stdout.isatty():
        return subprocess.call([*_PIP, *arguments])
    began, told = time.monotonic(), set[str]()
    with subprocess.Popen(
        [*_PIP, "--progress-bar", "off", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            what = stage(line)
            if what is not None and what not in told:
                told.add(what)
                print(f"{time.monotonic() - began:6.0f} s  {what}", flush=True)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
