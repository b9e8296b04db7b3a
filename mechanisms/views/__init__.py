"""Views: published numbers in, published numbers out. They use no noise, no key and no budget."""
