"""What a user may set of muxrl's own algorithms: of ``PPO`` by ``PPOSettings``, and so on.

Nothing here imports torch, so that settings are judged in no time.
"""

from muxrl.servers.algorithms.settings.off_policy import DQNSettings as DQNSettings
from muxrl.servers.algorithms.settings.off_policy import SACSettings as SACSettings
from muxrl.servers.algorithms.settings.on_policy import A2CSettings as A2CSettings
from muxrl.servers.algorithms.settings.on_policy import APPOSettings as APPOSettings
from muxrl.servers.algorithms.settings.on_policy import HAPPOSettings as HAPPOSettings
from muxrl.servers.algorithms.settings.on_policy import IMPALASettings as IMPALASettings
from muxrl.servers.algorithms.settings.on_policy import MAPPOSettings as MAPPOSettings
from muxrl.servers.algorithms.settings.on_policy import PPOSettings as PPOSettings
from muxrl.servers.algorithms.settings.teams import IQLSettings as IQLSettings
from muxrl.servers.algorithms.settings.teams import MADDPGSettings as MADDPGSettings
from muxrl.servers.algorithms.settings.teams import MASACSettings as MASACSettings
from muxrl.servers.algorithms.settings.teams import QMIXSettings as QMIXSettings
from muxrl.servers.algorithms.settings.teams import QPLEXSettings as QPLEXSettings
from muxrl.servers.algorithms.settings.teams import VDNSettings as VDNSettings
