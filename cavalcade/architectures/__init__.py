"""Who acts, where experience waits, how updates are combined: one file per architecture, each a short program."""
