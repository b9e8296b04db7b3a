"""`privstream plan`: what a privacy budget gives, before any data is touched."""
