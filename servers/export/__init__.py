"""Policies as ONNX files, which act without muxrl, RLlib and torch; `checkpoint.py` is the door."""
