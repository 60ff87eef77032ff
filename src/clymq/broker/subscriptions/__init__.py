"""Who has which messages of a point-to-point group, and until when. Pure: the leader's clock is handed in.

`spans` are sets of offsets, `leases` what one group has out, `handover` how that goes from leader to leader.
"""
