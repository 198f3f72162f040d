"""Content by hash: blobs, chunks, compression, hashing of lists."""
