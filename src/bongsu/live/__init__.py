"""Live: open pages get notifications at once, on any instance they are connected to, without gaps or repeats."""
