"""What the entry scripts share.

Named configs, folders of results, re-ranking, tracking. Only here do data and rankers meet.
"""
