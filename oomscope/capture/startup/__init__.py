"""The folder that ``oomscope record`` puts on PYTHONPATH; it holds ``sitecustomize.py`` and nothing else."""
