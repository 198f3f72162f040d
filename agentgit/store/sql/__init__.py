"""SQL: tables, column types, engines and pools, transactions, encryption, and what drivers' errors mean."""
