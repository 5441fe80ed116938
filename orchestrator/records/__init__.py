"""What a run writes while it lives, and reads back afterwards."""
