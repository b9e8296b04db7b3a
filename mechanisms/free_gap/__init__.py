"""Selection that also says by how much: top-k, sparse vector and exponential mechanisms with gaps."""
