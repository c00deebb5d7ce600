"""Our HTTP/1.1 client for providers (docs/decisions/0008-http-client.md)."""
