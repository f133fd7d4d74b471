"""Compile every kernel for an NVIDIA H200, which takes no card, and print what each asks of it, as JSON."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from consilia.kernels import conv, norm

H200 = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
#: Numbers that Triton finds to be multiples of 16 at the sizes that are trained.
EVEN = {"rows", "per", "pixels", "H", "W"}
REALS = {"momentum", "eps", "slope"}
WHOLE = EVEN | {"chunks", "by_out", "by_tap", "by_in"}


def compiled(kernel, fixed, **options):
    """Return registers, stack and shared memory of a kernel, and how wide it reads."""
    kinds = {
        **dict.fromkeys(kernel.arg_names, "*fp32"),
        **{name: "fp32" for name in kernel.arg_names if name in REALS},
        **{name: "i32" for name in kernel.arg_names if name in WHOLE},
        **dict.fromkeys(fixed, "constexpr"),
    }
    even = [
        place for place, (name, kind) in enumerate(kinds.items()) if kind[0] == "*" or name in EVEN
    ]
    source = ASTSource(
        kernel, kinds, constexprs=fixed, attrs={(p,): [["tt.divisibility", 16]] for p in even}
    )
    binary = triton.compile(source, target=H200, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        told, code = (
            subprocess.run(
                [CUOBJDUMP, flag, file.name], capture_output=True, text=True, check=True
            ).stdout
            for flag in ("-res-usage", "-sass")
        )
    return {
        "registers": int(re.findall(r"REG:(\d+)", told)[-1]),
        "stack": int(re.findall(r"STACK:(\d+)", told)[-1]),
        "shared": binary.metadata.shared,
        "reads": sorted(set(re.findall(r"(?:LDG\.E|LDGSTS\.E)[.\w]*", code))),
    }


def main():
    found = {}
    for channels, size in ((16, 2), (16, 1), (32, 2)):
        fixed = {"C": channels, "BP": norm.ROWS, "BC": norm.CHANNELS}
        merged = {**fixed, "SIZE": size, "CHUNKS": 256}
        kinds = {
            "_sum_squares": fixed,
            "_apply": {**merged, "BIASED": True, "RUNNING": size == 1},
            "_sum_gradients": fixed,
            "_gradients": merged,
        }
        for name, given in kinds.items():
            own = compiled(getattr(norm, name), given, num_warps=norm.WARPS)
            found[f"{name} {channels} {size}"] = own
    for inside, out in ((1, 16), (16, 16), (32, 16), (16, 32), (32, 32)):
        fixed = {"CI": inside, "CO": out, "BP": conv.PIXELS}
        fixed |= {"J": conv._padded(3 * inside), "BO": conv._padded(out)}
        options = {"num_warps": conv.WARPS, "num_stages": conv.STAGES}
        own = compiled(conv._weigh, fixed, **options)
        found[f"_weigh {inside} {out}"] = own
        if min(inside, out) <= conv.FEWEST:
            for flip in (False, True):
                ways = {"FLIP": flip, "BIASED": not flip}
                own = compiled(conv._convolve, {**fixed, **ways}, **options)
                found[f"_convolve {inside} {out} {flip}"] = own
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
