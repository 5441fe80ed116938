"""muxrl's own algorithms; ``pyproject.toml`` registers their trainers by name."""
