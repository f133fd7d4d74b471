"""Compile every kernel for an NVIDIA H200, which takes no card, and print what each asks of it, as JSON.

After `ones`, compile them for arguments that are one, which Triton makes constants of the program.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from consilia.kernels import conv, norm, sample

H200 = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
#: Numbers that Triton finds to be multiples of 16 at the sizes that are trained.
EVEN = {"rows", "per", "pixels", "H", "W", "h", "w", "S", "B", "C", "many"}
#: Feature maps and their gradients, which may be bfloat16.
MAPS = {"x", "y", "dx", "dy", "skip", "below", "dbelow"}
REALS = {"momentum", "eps", "slope", "down", "across"}
WHOLE = EVEN | {"chunks", "by_out", "by_tap", "by_in", "parts"}


def compiled(kernel, fixed, maps="fp32", **options):
    """Return registers, stack and shared memory of a kernel, and how wide it reads."""
    kinds = {
        **dict.fromkeys(kernel.arg_names, "*fp32"),
        **{name: f"*{maps}" for name in kernel.arg_names if name in MAPS},
        **{name: "fp32" for name in kernel.arg_names if name in REALS},
        **{name: "i32" for name in kernel.arg_names if name in WHOLE},
        **dict.fromkeys(fixed, "constexpr"),
    }
    even = [
        place
        for place, (name, kind) in enumerate(kinds.items())
        if kind[0] == "*" or (name in EVEN and name not in fixed)
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


def norms():
    """Yield the kernels of normalisation, of group norm and of batch norm."""
    for channels, size in ((16, 2), (16, 1), (32, 2), (64, 1), (64, 2)):
        together = norm.NARROW if channels < norm.MANY else norm.WIDE
        fixed = {"C": channels, "BP": norm.ROWS, "BC": together}
        merged = {**fixed, "SIZE": size, "CHUNKS": 256}
        kinds = {
            norm._sum_squares: fixed,
            norm._apply: {**merged, "BIASED": True, "RUNNING": size == 1},
            norm._sum_gradients: fixed,
            norm._gradients: merged,
            norm._scale: {**fixed, "BIASED": True},
        }
        for kernel, given in kinds.items():
            yield kernel, f"{channels} {size}", given, {"num_warps": norm.WARPS}


def convolutions():
    """Yield the kernels of convolutions."""
    options = {"num_warps": conv.WARPS, "num_stages": conv.STAGES}
    for inside, out in ((1, 16), (16, 16), (32, 16), (16, 32), (32, 32), (64, 32), (64, 64)):
        fixed = {"CI": inside, "CO": out, "BP": conv.PIXELS}
        own, their = min(inside, conv.BLOCK), min(conv._padded(out), conv.BLOCK)
        blocks = {"BI": own, "J": conv._padded(3 * own), "BO": their, "BP": conv.FEWER}
        yield conv._weigh, f"{inside} {out}", {**fixed, **blocks}, options
        if inside * out <= conv.FEWEST:
            fixed |= {"J": conv._padded(3 * inside), "BO": conv._padded(out)}
            for flip in (False, True):
                ways = {"FLIP": flip, "BIASED": not flip}
                yield conv._convolve, f"{inside} {out} {flip}", {**fixed, **ways}, options
    yield conv._add, "16", {"PARTS": 512, "BC": conv.COLUMNS}, {"num_warps": conv.WARPS}


def samples():
    """Yield the kernels between levels."""
    for channels in (16, 64):
        block = sample._block(channels)
        options = {"num_warps": block.pop("num_warps")}
        for kernel in (sample._largest, sample._to_largest, sample._join):
            yield kernel, str(channels), block, options
        yield sample._part, str(channels), {**block, "REACH": sample.REACH}, options


def ones():
    """Yield each kernel once for each whole number that Triton makes a constant because it is one."""
    first = {}
    for kernel, _, fixed, options in (*norms(), *convolutions(), *samples()):
        first.setdefault(kernel, (fixed, options))
    for kernel, (fixed, options) in first.items():
        for name in WHOLE.intersection(kernel.arg_names):
            yield kernel, name, {**fixed, name: 1}, options


def main():
    found = {}
    if "ones" in sys.argv:
        for kernel, name, fixed, options in ones():
            found[f"{kernel.fn.__name__} {name}"] = compiled(kernel, fixed, **options)
        json.dump(found, sys.stdout, indent=1)
        return
    for kernel, name, fixed, options in (*norms(), *convolutions(), *samples()):
        found[f"{kernel.fn.__name__} {name}"] = compiled(kernel, fixed, **options)
    for kernel, name, fixed, options in (*norms(), *samples()):
        own = compiled(kernel, fixed, "bf16", **options)
        found[f"{kernel.fn.__name__} {name} bf16"] = own
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
