"""Accuracy of a demo model per kind of question, on held-out clips and on endless streams.

python scripts/evaluate_demo.py HF_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

try:
    import torch
    from transformers import AutoTokenizer
    from transformers.models.smolvlm import SmolVLMForConditionalGeneration
except ImportError as error:
    missing = f"{error.name} is not installed: pip install -e '.[export]'"
    raise SystemExit(f"evaluate_demo.py: {missing}") from None

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

from demo_training.data import Encoder  # noqa: E402  (found through the path above)
from demo_training.evaluate import score_clips, score_streams  # noqa: E402
from demo_training.model import Trainee  # noqa: E402

from edgekv.demo import MAX_FRAMES  # noqa: E402


@click.command(context_settings={"show_default": True})
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--clips", default=240, help="Held-out clips of 1 to 24 frames; 0 leaves them out.")
@click.option("--streams", default=8, help="Streams side by side; 0 leaves them out.")
@click.option("--frames", default=1200, help="Length of each stream.")
@click.option("--ask-from", default=1000, help="Frame of the first question on a stream.")
@click.option("--ask-every", default=5, help="Frames from one round of questions to the next.")
@click.option("--keep", default=MAX_FRAMES // 2, help="Frames that stay when the window is full.")
@click.option("--threads", default=1, help="CPU threads.")
def main(
    folder: Path,
    clips: int,
    streams: int,
    frames: int,
    ask_from: int,
    ask_every: int,
    keep: int,
    threads: int,
) -> None:
    """Print exact accuracy per kind."""
    torch.set_num_threads(threads)
    console = Console(highlight=False)
    trainee = Trainee(SmolVLMForConditionalGeneration.from_pretrained(folder)).eval()
    encoder = Encoder(AutoTokenizer.from_pretrained(folder))
    if clips:
        with console.status(f"asking {clips} clips"):
            score = score_clips(trainee, encoder, num_clips=clips, max_frames=MAX_FRAMES)
        console.print(f"clips of 1 to {MAX_FRAMES} frames", *score.lines(), sep="\n")
    if streams:
        with console.status(f"asking {streams} streams of {frames} frames"):
            score = score_streams(
                trainee,
                encoder,
                num_streams=streams,
                num_frames=frames,
                ask_from=ask_from,
                ask_every=ask_every,
                window=MAX_FRAMES,
                keep=keep,
            )
        title = f"streams from frame {ask_from} on, {keep} to {MAX_FRAMES} frames kept"
        console.print(title, *score.lines(), sep="\n")


if __name__ == "__main__":
    main()
