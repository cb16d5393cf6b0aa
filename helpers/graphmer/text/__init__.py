"""From a graph and its sources to sequences of tokens: leafy chains, masked and with wrong tails."""
