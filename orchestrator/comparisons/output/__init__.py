"""How a comparison is shown: tables declared once, then page, files and terminal."""
