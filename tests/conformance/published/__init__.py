"""Rows of memory that others published, measured again on the virtual card (see ``public_rows.py``)."""
