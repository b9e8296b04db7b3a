"""Views: published tables in, published tables out, without noise or keys: post-processing, which costs no privacy."""
