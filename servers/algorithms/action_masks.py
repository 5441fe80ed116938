"""Where checkpoints of earlier versions look for these classes; see `muxrl.servers.rllib`."""

from muxrl.servers.rllib.action_masks import MaskablePPOCatalog, MaskablePPOTorchRLModule

__all__ = ["MaskablePPOCatalog", "MaskablePPOTorchRLModule"]
