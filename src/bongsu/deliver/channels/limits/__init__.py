"""What keeps a channel from sending: circuit breaker, pauses, pace, quota."""
