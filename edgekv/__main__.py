"""``python -m edgekv`` is the ``edgekv`` command. Ctrl-C ends it quietly from its imports on."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from edgekv.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
