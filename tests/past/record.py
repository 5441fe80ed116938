"""Writes conversation.json: `python -m tests.past.record`. It was made once; see README.md."""

from __future__ import annotations

import json
from pathlib import Path

from tests.past.exchange import ask
from tests.past.talk import frames, serving

FILE = Path(__file__).with_name("conversation.json")


def main() -> None:
    """Records the conversation over both transports."""
    recorded = []
    with serving() as address:
        for kind in ("websocket", "http"):
            sent = list(frames(f"past-{kind}", as_json=kind == "http"))
            answers = ask(address, kind, sent)
            recorded += [
                {"transport": kind, "sent": frame.hex(), "received": answer.hex()}
                for frame, answer in zip(sent, answers, strict=True)
            ]
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
