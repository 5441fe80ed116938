"""Files on disk that are whole or absent; checkpoints; folders that one process owns."""
