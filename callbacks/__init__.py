"""Lightning callbacks: what happens around a ranker while it is trained and tested."""
