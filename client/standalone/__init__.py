"""Clients to copy into a simulation's own environment: Python, Java and C++, one file each.

They need nothing but their language's standard library (C++: POSIX sockets), and import nothing of
muxrl. Each holds one conversation over HTTP, with a server or with a gateway. See
docs/languages.md.
"""
