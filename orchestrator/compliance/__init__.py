"""Tries the rules of docs/protocol.md on a server or a client in any language."""
