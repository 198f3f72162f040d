"""The SQL store: tables, transactions, blobs, sessions and the journal. It does not import LangGraph."""
