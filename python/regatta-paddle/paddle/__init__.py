"""``paddle``, as Regatta answers for it."""


def _become():
    import regatta.paddle as shim
    from regatta.paddle import _alias

    there = shim.installed_paddle()
    if there is not None:
        raise ImportError(
            f"{there} and regatta-paddle are both installed, and both own the module paddle: "
            "uninstall both, then install the one you want. `python -m regatta.paddle script.py` "
            "needs only regatta-train"
        )
    _alias.top_level(globals())


_become()
