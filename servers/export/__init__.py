"""Exports policies as ONNX files, which act without muxrl, RLlib and torch.

Other code calls `muxrl.servers.fixed_policies.exported`.
"""
