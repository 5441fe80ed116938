"""The live page of `muxrl watch`: shows a run, a sweep or a folder of runs from its files alone.

`tail.py` and thinned curves keep memory bounded however long a run lasts. `run_view.py` and
`sweep_view.py` turn a directory into plain data for the page, `app.py` sends the data as
server-sent events, and ``page/`` draws them.
"""
