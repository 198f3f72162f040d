"""SQL: tables, column types, engines and pools, transactions, encryption, and the meaning of driver errors."""
