"""`python -m fxmem`, and so `torchrun -m fxmem`."""

from .cli import app

if __name__ == "__main__":
    app(prog_name="fxmem")
