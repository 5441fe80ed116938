"""A run's numbers for the trackers people use: TensorBoard, Weights & Biases, MLflow, one's own.

They get the rows that go to ``metrics/*.jsonl``, and the report's files at the end. What they hold
is a copy, so no tracker can fail, hold or end a run.
"""
