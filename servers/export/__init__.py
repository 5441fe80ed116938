"""Policies as ONNX files, which act without muxrl, RLlib and torch.

The door is `muxrl.servers.fixed_policies.exported`.
"""
