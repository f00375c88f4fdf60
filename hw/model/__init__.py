"""A real transformer behind the engine's port: transformers' modelling code on paged KV cache."""
