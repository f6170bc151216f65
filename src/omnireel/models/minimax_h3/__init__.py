"""MiniMax-H3: one diffusion transformer that makes a clip and its soundtrack together."""
