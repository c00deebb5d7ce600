"""What everything that runs is built on: loop, group commit, signals and their topics, logs and metrics, the process."""
