"""What everything that runs is built on: the loop, signals, logs and metrics, the process itself, backoff."""
