"""Every verb on one session, without a graph."""
