"""Files on disk: whole or absent; checkpoints; the process that owns a folder."""
