"""IMPALA and APPO as a policy server runs them: one batch, one update, at once."""

from muxrl.servers.algorithms.impala.impala import APPO, IMPALA, APPOConfig, IMPALAConfig

__all__ = ["APPO", "IMPALA", "APPOConfig", "IMPALAConfig"]
