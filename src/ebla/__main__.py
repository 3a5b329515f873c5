"""`ebla` and `python -m ebla`: the command line. A node's processes start in `ebla.node`."""

from ebla.cli.app import main

if __name__ == "__main__":
    main()
