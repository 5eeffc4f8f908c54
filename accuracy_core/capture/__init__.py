"""Module tensors and KV caches of a teacher-forced pass: taking, naming, comparing and replacing them."""
