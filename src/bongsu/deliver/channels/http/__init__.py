"""Our HTTP/1.1 client for providers (docs/decisions/0005-our-own-http-client.md)."""
