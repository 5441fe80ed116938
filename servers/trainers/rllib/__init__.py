"""RLlib's algorithms, and users' own RLlib configs, as trainers."""

from importlib.util import find_spec

for _name in ("ray", "tree"):
    if find_spec(_name) is None:
        raise ModuleNotFoundError(
            f"No module named {_name!r}; RLlib comes with: pip install 'muxrl[rllib]'", name=_name
        )
