"""Run records → tables, pictures, one HTML page."""
