"""How results are shown: tables, the picture, the page and the summary of a run."""
