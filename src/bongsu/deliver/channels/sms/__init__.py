"""SMS through an HTTP gateway or Apprise."""
