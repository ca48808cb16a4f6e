"""The ledger of all nights, and the trends in it."""
