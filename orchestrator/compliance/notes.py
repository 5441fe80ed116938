"""The rules for clients, and what a strict server has noted of each."""

from __future__ import annotations

from collections import Counter

from muxrl.orchestrator.compliance.verdicts import Broken, Verdict

RULES = {
    "messages": ("transports", "what is sent are messages of the protocol"),
    "starts": ("rule 1", "each episode is started, under an id of its own"),
    "order": ("rule 2", "t counts from 0, and the end has the number of steps"),
    "turns": ("transports", "no frame comes before the answer to the one before it"),
    "values": ("refusals", "agents and values are as the spec says; rewards are finite"),
    "done": ("rule 5", "an agent that is done does not observe again"),
    "finals": ("rule 6", "a truncated agent that acted has its final observation"),
    "closed": ("an episode", "each episode that is started is ended or aborted"),
    "repeats": ("rule 2", "a frame whose answer is lost is sent again as it was"),
    "410": ("refusals", "an episode that the server does not know is given up for another one"),
    "503": ("across 7", "a start that is refused with a 503 is sent again"),
    "exit": ("the command", "it ends by itself, with exit code 0"),
}
_NEVER = {
    "done": "no agent was done before the end of its episode",
    "finals": "no agent was truncated",
    "turns": "no third episode had a second step",
    "repeats": "no second episode had a second step",
    "410": "no fourth episode had a second step, or none came after it",
    "503": "there was no fifth episode, or it was not waited for",
    "exit": "it went on after all troubles, and was ended",
}


class Notes:
    """Counts how often each rule was kept, and keeps how it was first broken."""

    def __init__(self) -> None:
        self._num_kept: Counter[str] = Counter()
        self._broken: dict[str, str] = {}

    def kept(self, rule: str) -> None:
        """Notes that a rule was kept when it could have been broken."""
        self._num_kept[rule] += 1

    def broken(self, rule: str, expected: str, came: object) -> None:
        """Notes that a rule was broken."""
        self._broken.setdefault(rule, str(Broken(expected, came)))

    def verdicts(self) -> list[Verdict]:
        """Returns a verdict on each rule."""
        found = []
        for rule, (where, text) in RULES.items():
            if rule in self._broken:
                found.append(Verdict(where, text, "broken", self._broken[rule]))
            elif self._num_kept[rule]:
                found.append(Verdict(where, text, "ok"))
            else:
                found.append(Verdict(where, text, "skipped", _NEVER.get(rule, "no step came")))
        return found
