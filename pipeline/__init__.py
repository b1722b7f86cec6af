"""What the entry scripts share: named configs, run folders, tables, tracking. Only here do data and rankers meet."""
