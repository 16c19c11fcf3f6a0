"""TensorRT: the only package that imports it.

``profiles`` says which shapes engines are built for and ``jobs`` of which graphs; ``build`` makes
them, ``engine_cache`` keeps them, ``memory`` says what a build takes, ``running`` has one run.
``bindings`` and ``step_inputs`` lay a step out, ``decoder`` runs it over a small CUDA
(``edgekv.executors.cuda``); ``fixed`` runs what always has the same shapes, for ``vision`` and
``cross``. ``open`` puts everything together, for whichever ``engine`` runs.
"""
