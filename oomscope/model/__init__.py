"""The bundled transformer: a rank of Megatron-Core's GPT, tensor by tensor, usable on its own."""
