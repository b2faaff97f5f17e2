"""Limits that several rooms share, on what users ask for and on what files say."""

LARGEST_SIZE = 1024
"""Pixels a side of the images that a network takes; a few of them fill most of 2 GB on their way
through a trunk."""
HUB = "hf://"
"""Begins the names of data sets and models that may be asked of the Hugging Face hub. What begins
otherwise may be the name of a private folder, and is never sent anywhere."""
