"""Child script: compile and run one addition with XLA:CPU, to see whether the installed jaxlib works here."""

from __future__ import annotations

import json
import sys


def main() -> None:
    import jax

    result = jax.jit(lambda x: x + 1)(1)
    if int(result) != 2:
        raise SystemExit("1 + 1 is not 2 here")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"platform": jax.devices()[0].platform}, file)


main()
