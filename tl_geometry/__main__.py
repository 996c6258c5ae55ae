"""`python -m tl_geometry` is the same as the command `tl-geometry`."""

from tl_geometry.cli import main

if __name__ == "__main__":
    main()
