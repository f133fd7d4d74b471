"""`python -m consilia`: the command line, where its script is not on the path."""

from consilia.cli.main import main

if __name__ == "__main__":
    main()
