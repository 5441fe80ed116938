"""What a comparison found: plain values and how they are computed; nothing here writes or draws."""
