"""``paddle``, as Regatta answers for it."""


def _become():
    import os
    import sys

    try:
        import regatta.paddle._alias as alias
    except ModuleNotFoundError as error:
        if error.name != "regatta":
            raise
        # A process that inherited the path to this file, but not the one to the package.
        here = os.path.abspath(__file__)
        for _ in range(5):
            here = os.path.dirname(here)
        sys.path.append(here)
        import regatta.paddle._alias as alias
    alias.top_level(globals())


_become()
