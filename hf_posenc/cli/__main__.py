"""`python -m hf_posenc.cli`, which is what accelerate and torchrun start."""

from ..cli import main

if __name__ == "__main__":
    main()
