"""Pure tensor maths; every shape in the signature, no state."""
