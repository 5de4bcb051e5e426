"""The data sets of the papers: where they are, what is taken of them, and how it becomes text."""
