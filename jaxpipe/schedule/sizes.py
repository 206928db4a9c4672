"""The first question every generator asks: are the sizes whole numbers of at least one?"""


def check_sizes(**sizes: object) -> None:
    """Raises unless every size is an `int` of at least 1.

    Raises:
        TypeError: If a size is not an integer (True and 4.0 are not).
        ValueError: If a size is below 1.

    Example:
        >>> check_sizes(num_devices=4, num_microbatches=0)
        Traceback (most recent call last):
        ValueError: num_microbatches must be at least 1, but is 0; use num_microbatches=1 or more
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            nearest = max(1, int(size)) if isinstance(size, float) and size.is_integer() else 1
            raise TypeError(
                f"{name} must be an integer, but is {size!r} of type {type(size).__name__}; "
                f"use {name}={nearest} or more"
            )
        if size < 1:
            raise ValueError(f"{name} must be at least 1, but is {size}; use {name}=1 or more")
