"""For tests, ours and users': clusters of real processes that can be killed, frozen and cut off from each other."""
