"""Content-addressed storage: blobs, chunks, compression and hashing of lists."""
