"""Shows a comparison: tables, which are declared once, on the page, in files, on the terminal."""
