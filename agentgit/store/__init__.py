"""The store: SQL, and nothing that knows LangGraph. Tables, transactions, blobs, sessions, the journal."""
