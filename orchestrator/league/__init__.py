"""Leagues: members that train in rounds against an archive of their own past.

A round is a sweep (`rounds`): a trial for each member that trains, whose other roles a POOL of the
archive plays. After it all members ever archived meet (`games`), and are rated (`report`). What a
round needs stands in the rounds before it, so that nothing else has to be kept (`runner`).
"""
