"""Writes spec.json and conversation.json: `python -m tests.past.record`, once; see README.md."""

from __future__ import annotations

import json
from pathlib import Path

import requests
from tests.past.exchange import ask
from tests.past.talk import frames, serving

FILE = Path(__file__).with_name("conversation.json")


def main() -> None:
    """Records what the server says of itself, and the conversation over both transports."""
    recorded = []
    with serving() as address:
        spec = requests.get(f"http://{address}/v1/spec", timeout=30).text
        for kind in ("websocket", "http"):
            sent = list(frames(f"past-{kind}", as_json=kind == "http"))
            answers = ask(address, kind, sent)
            recorded += [
                {"transport": kind, "sent": frame.hex(), "received": answer.hex()}
                for frame, answer in zip(sent, answers, strict=True)
            ]
    FILE.with_name("spec.json").write_text(spec + "\n")
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
