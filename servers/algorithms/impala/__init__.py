"""IMPALA and APPO without RLlib's asynchrony: a batch is learned when it arrives."""

from muxrl.servers.algorithms.impala.impala import APPO, IMPALA, APPOConfig, IMPALAConfig

__all__ = ["APPO", "IMPALA", "APPOConfig", "IMPALAConfig"]
