"""A user's file, folder or hub set: its rows, or an error that names the line."""
