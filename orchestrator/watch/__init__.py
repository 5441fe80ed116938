"""The live page of `muxrl watch`: a run, a sweep or a folder of runs, read from its files alone.

`tail.py` and curves that are thinned keep memory bounded however long a run lasts; `run_view.py`
and `sweep_view.py` turn a directory into what the page shows, as plain data; `app.py` sends it as
server-sent events; ``page/`` draws it.
"""
