"""The HTTP front: any backend, published with the OpenAI API."""
