"""Shows results: the tables, the picture, the page and the summary of a run."""
