"""What operators read and change: history, progress, dead letters, cancellations."""
