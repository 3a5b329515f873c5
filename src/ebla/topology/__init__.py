"""One frozen description of the cluster, its transitions as tables, and who serves what. Pure.

states.py       closed sets of words          tablet_map.py   tablets of one table, in chunks
snapshot.py     rows and the snapshot         frozen_map.py   a dict that does not change
"""
