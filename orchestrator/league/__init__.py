"""Leagues: members that train in rounds against an archive of their own past.

A round is a sweep (`rounds`) with a trial for each member that trains, in which POOLs of the
archive play the other roles. After a round all members that were ever archived meet (`games`) and
are rated (`report`). A round needs only the files of earlier rounds, so nothing else is kept
(`runner`).
"""
