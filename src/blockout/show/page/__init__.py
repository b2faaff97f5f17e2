"""What a run learned, to look at: one page to explore, and the paper's figures."""
