"""The rules for clients, and what a strict server has noted of each."""

from __future__ import annotations

from collections import Counter

from muxrl.orchestrator.compliance.verdicts import Broken, Verdict

RULES = {
    "messages": ("transports", "each message is one of the protocol"),
    "starts": ("rule 1", "each episode is started, under an id of its own"),
    "order": ("rule 2", "t counts steps from 0, and an end has the number of steps as its t"),
    "turns": ("transports", "a frame is sent only after the answer to the previous frame"),
    "values": ("refusals", "agents and values match the server's spec; rewards are finite"),
    "done": ("rule 5", "no observation is sent for an agent that is done"),
    "finals": ("rule 6", "the final observation of each truncated agent that acted is sent"),
    "closed": ("an episode", "each episode that is started is ended or aborted"),
    "repeats": ("rule 2", "a frame whose answer is lost is sent again unchanged"),
    "410": ("refusals", "after a 410, another episode is started"),
    "503": ("across 7", "a start that is refused with a 503 is sent again later"),
    "exit": ("the command", "the client's program ends by itself, with exit code 0"),
}
_NEVER = {
    "done": "no agent was done before the end of its episode",
    "finals": "no agent was truncated",
    "turns": "tested at the second step of the third episode, which was not sent",
    "repeats": "tested at the second step of the second episode, which was not sent",
    "410": "tested at the second step of the fourth episode and the start of the fifth, of which "
    "one was not sent",
    "503": "tested at the start of the fifth episode, which was not sent, or not sent again",
    "exit": "the program was still running after all tests, and was ended",
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
                found.append(Verdict(where, text, "skipped", _NEVER.get(rule, "no step was sent")))
        return found
