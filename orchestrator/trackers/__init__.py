"""Sends a run's numbers to trackers: TensorBoard, Weights & Biases, MLflow, or a user's own.

A tracker gets the rows that go to ``metrics/*.jsonl``, and the report's files at the end. It only
holds a copy, so no tracker can fail, hold up or end a run.
"""
