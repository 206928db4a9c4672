"""What a program says when it will not run: one message, and no traceback."""


class UserError(ValueError):
    """Something that the user can mend: the rule, the values found and the nearest fix.

    Programs of this package print it as `error: ...` and end with status 2.
    """
