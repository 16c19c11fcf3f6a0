"""Training of the demo model: data, model, loop and evaluation, used by scripts/train_demo.py."""
