"""`python -m runnel`: the same as `runnel`, and how a supervisor starts its children."""

from .cli.main import main

if __name__ == "__main__":
    main()
