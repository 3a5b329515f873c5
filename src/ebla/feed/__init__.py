"""Followers of the topology feed: views, session guards, barriers."""
