"""Compiles the kernels: nvrtc.py LIBNVRTC KERNELS_DIR OUT_DIR. Called by `cargo xtask kernels`."""

import ctypes
import pathlib
import re
import sys

# Architecture, file, and for PTX the oldest ISA version that has everything the kernels use: NVRTC writes its own version,
# which drivers older than it refuse although they know every instruction.
TARGETS = [
    ("sm_75", "sm_75.cubin", None),
    ("sm_80", "sm_80.cubin", None),
    ("sm_90", "sm_90.cubin", None),
    ("sm_100", "sm_100.cubin", None),
    ("sm_120", "sm_120.cubin", None),
    ("compute_75", "compute_75.ptx", "6.4"),
    ("compute_80", "compute_80.ptx", "7.0"),
]
OPTIONS = ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true"]
UNIT = "kernels.cu"


def main(library, kernels, out):
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    files = {path.name: path.read_bytes() for path in sorted(pathlib.Path(kernels).glob("*.cu*"))}
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for architecture, name, isa in TARGETS:
        image = compile_unit(nvrtc, files, architecture)
        if isa:
            image = re.sub(rb"(?m)^\.version .*$", b".version " + isa.encode(), image, count=1)
        (out / name).write_bytes(image)


def compile_unit(nvrtc, files, architecture):
    """The cubin, or the PTX for a virtual architecture. Headers are passed by name, so that no path gets into the result."""
    headers = {name: text for name, text in files.items() if name != UNIT}
    program = ctypes.c_void_p()
    array = ctypes.c_char_p * len(headers)
    check(nvrtc, "nvrtcCreateProgram", nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), files[UNIT], UNIT.encode(), len(headers),
        array(*headers.values()), array(*(name.encode() for name in headers))))
    options = [option.encode() for option in [f"--gpu-architecture={architecture}", *OPTIONS]]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = fetch(nvrtc, program, "ProgramLog").rstrip(b"\0").strip()
    if log:
        print(f"{architecture}:\n{log.decode()}", file=sys.stderr)
    check(nvrtc, f"compiling {UNIT} for {architecture}", code)
    if architecture.startswith("sm_"):
        return fetch(nvrtc, program, "CUBIN")
    return fetch(nvrtc, program, "PTX")


def fetch(nvrtc, program, what):
    size = ctypes.c_size_t()
    check(nvrtc, f"nvrtcGet{what}Size", getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(nvrtc, f"nvrtcGet{what}", getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def check(nvrtc, call, code):
    if code != 0:
        sys.exit(f"{call}: {nvrtc.nvrtcGetErrorString(code).decode()} (code {code})")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
