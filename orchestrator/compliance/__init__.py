"""The rules of docs/protocol.md, played against a server or a client of any language."""
