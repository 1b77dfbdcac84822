"""One small module a format: each reads headers alone and makes an `Archive`."""
