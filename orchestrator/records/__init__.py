"""Writes the records of a run while it goes on, and reads them back afterwards."""
