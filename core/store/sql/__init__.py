"""The log in a SQL database: SQLite and PostgreSQL through SQLAlchemy."""
