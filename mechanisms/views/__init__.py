"""Views: published tables in, published tables out. Nothing here knows noise or keys."""
