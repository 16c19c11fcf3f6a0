"""TensorRT: the only package that imports it.

``profiles`` says which shapes engines are built for, ``build`` makes them, ``engine_cache`` keeps
them, ``bindings`` lays a step out, ``memory`` says what a build takes, ``decoder`` and ``vision``
run it over a small CUDA (``edgekv.executors.cuda``), ``open`` puts everything together.
"""
