"""The parts of `python benchmarks/heads.py`: what is run, what came of it, and how it is shown."""
