"""Train the demo model on drawn video and write it as a Hugging Face folder.

    python scripts/train_demo.py OUT --minutes 90

OUT/hf is the folder for scripts/export.py; OUT/checkpoint.pt is what --resume goes on from.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

try:
    import torch
    import torch.distributed as dist
    import transformers  # noqa: F401  (the training's modules import it)
    from torch.multiprocessing.spawn import spawn
except ImportError as error:
    missing = f"{error.name} is not installed: pip install -e '.[export]'"
    raise SystemExit(f"train_demo.py: {missing}") from None

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

from demo_training.loop import Trainer  # noqa: E402  (found through the path above)
from demo_training.tokenizer import build_tokenizer  # noqa: E402


@dataclass(frozen=True)
class Options:
    """What the command line says, for every worker."""

    out: Path
    minutes: float
    resume: bool
    workers: int
    threads: int
    seed: int
    lr: float
    muon_lr: float
    scale: float
    bf16: bool
    vision_steps: int
    save_every: float
    report_every: float


@click.command(context_settings={"show_default": True})
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--minutes", default=90.0, help="Training time; the schedule is a share of it.")
@click.option("--resume", is_flag=True, help="Go on from OUT/checkpoint.pt.")
@click.option("--workers", default=2, help="Processes that share each batch.")
@click.option("--threads", default=1, help="CPU threads of each worker.")
@click.option("--seed", default=0, help="Seed of weights and data.")
@click.option("--lr", default=1.5e-3, help="Peak rate of AdamW.")
@click.option("--muon-lr", default=0.01, help="Peak rate of Muon; 0 trains all with AdamW.")
@click.option("--scale", default=1.0, help="Multiplies the sequences in a batch.")
@click.option("--bf16", is_flag=True, help="Compute in bfloat16.")
@click.option("--vision-steps", default=0, help="Steps on the vision tower alone, to begin with.")
@click.option("--save-every", default=180.0, help="Seconds between checkpoints.")
@click.option("--report-every", default=30.0, help="Seconds between reports.")
def main(**options: Any) -> None:
    """Train the demo model; checkpoints and the model folder go to OUT."""
    chosen = Options(**options)
    if chosen.workers == 1:
        work(0, chosen, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (chosen, f"file://{folder}/meeting"), nprocs=chosen.workers)


def work(rank: int, options: Options, meeting: str) -> None:
    """One worker: trains, and if it is the first one reports and saves."""
    torch.set_num_threads(options.threads)
    if options.workers > 1:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=options.workers)
    trainer = Trainer(
        build_tokenizer(),
        options.out,
        minutes=options.minutes,
        seed=options.seed,
        lr=options.lr,
        muon_lr=options.muon_lr,
        scale=options.scale,
        bf16=options.bf16,
        rank=rank,
        workers=options.workers,
        vision_steps=options.vision_steps,
    )
    if options.resume:
        trainer.resume()
    if rank == 0:
        lead(trainer, options)
        return
    while trainer.progress < 1:
        trainer.step()


def lead(trainer: Trainer, options: Options) -> None:
    """Train with progress, reports and checkpoints."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("training", total=1.0)
        saved = reported = time.monotonic()
        while trainer.progress < 1:
            trainer.step()
            progress.update(task, completed=trainer.progress)
            now = time.monotonic()
            if now - reported > options.report_every:
                console.print(f"{trainer.describe()}  {trainer.meter.report()}", soft_wrap=True)
                reported = now
            if now - saved > options.save_every:
                trainer.save()
                saved = time.monotonic()
    trainer.save()


if __name__ == "__main__":
    main()
