"""One rank of the gloo peer: runs collectives of torch.distributed on the CPU when told to.

The protocol and the environment are described in README.md beside this file. Between commands the
process blocks in a read of its socket and uses no CPU.
"""

import datetime
import json
import os
import resource
import socket
import sys
import time
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402 (the filter above must stand before the import)
import torch.distributed as dist  # noqa: E402

# Threads for elementwise work would only be in each other's way: there are as many ranks as cores. Gloo has its own.
torch.set_num_threads(1)

TIMEOUT = datetime.timedelta(seconds=60)

DTYPES = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "bfloat16": torch.bfloat16,
}

OPERATORS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


class Unsupported(Exception):
    """The command asks for something that this peer cannot do."""


# Elements that are made and compared at a time: few enough that what is computed stays in the cache.
BLOCK = 1 << 16
MULTIPLIER = 2654435761


def wrapped(value):
    """`value` as a signed 32-bit number, which is how torch's int32 wraps."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


STRIDES = torch.arange(BLOCK, dtype=torch.int32) * wrapped(MULTIPLIER)


def pattern(rank, first, count, op):
    """Elements first..first+count, at most a block, of the input of `rank` (see README.md: the pattern)."""
    mixed = STRIDES[:count] + wrapped(first * MULTIPLIER + rank * 40503)
    mixed.bitwise_right_shift_(16).bitwise_and_(0xFFFF)
    return mixed.remainder_(2).add_(1) if op == "prod" else mixed.remainder_(5)


def reduced(size, first, count, op):
    """What those elements of the reduction over all ranks must be."""
    total = pattern(0, first, count, op)
    for rank in range(1, size):
        term = pattern(rank, first, count, op)
        if op == "sum":
            total += term
        elif op == "prod":
            total *= term
        elif op == "min":
            total = torch.minimum(total, term)
        else:
            total = torch.maximum(total, term)
    return total


def blocks(tensor):
    """The blocks of a tensor, each with the number of its first element."""
    return ((first, tensor[first : first + BLOCK]) for first in range(0, tensor.numel(), BLOCK))


class Round:
    """The buffers and the operation of one command."""

    def __init__(self, command, rank, size):
        self.rank, self.size = rank, size
        self.name = command["collective"]
        self.op = command["op"] if self.name in ("all-reduce", "reduce-scatter") else "none"
        if command["dtype"] not in DTYPES:
            raise Unsupported(f"gloo has no type {command['dtype']}")
        if self.op != "none" and self.op not in OPERATORS:
            raise Unsupported(f"gloo has no operator {self.op}")
        self.dtype = DTYPES[command["dtype"]]
        elements = command["bytes"] // torch.empty(0, dtype=self.dtype).element_size()
        parted = self.name in ("all-gather", "reduce-scatter")
        self.part = elements // size if parted else elements
        if self.part == 0:
            raise Unsupported(f"{command['bytes']} bytes hold less than one element a rank")
        total = self.part * size if parted else self.part
        # torch.distributed knows all-reduce and broadcast in place only.
        self.in_place = command["in_place"] or not parted
        mine = slice(rank * self.part, (rank + 1) * self.part)
        if self.name == "all-gather":
            self.output = torch.zeros(total, dtype=self.dtype)
            self.input = self.output[mine] if self.in_place else torch.zeros(self.part, dtype=self.dtype)
        elif self.name == "reduce-scatter":
            self.input = torch.zeros(total, dtype=self.dtype)
            self.output = self.input[mine] if self.in_place else torch.zeros(self.part, dtype=self.dtype)
        elif self.name in ("all-reduce", "broadcast"):
            self.input = self.output = torch.zeros(total, dtype=self.dtype)
        else:
            raise Unsupported(f"gloo's worker has no collective {self.name}")
        self.fill()

    def fill(self):
        """Writes this rank's input."""
        self.output.zero_()
        first = self.rank * self.part if self.name == "all-gather" else 0
        for start, block in blocks(self.input):
            block.copy_(pattern(self.rank, first + start, block.numel(), self.op))

    def run(self):
        """One operation."""
        if self.name == "all-reduce":
            dist.all_reduce(self.input, OPERATORS[self.op])
        elif self.name == "broadcast":
            dist.broadcast(self.input, 0)
        elif self.name == "all-gather":
            dist.all_gather_into_tensor(self.output, self.input)
        else:
            dist.reduce_scatter_tensor(self.output, self.input, OPERATORS[self.op])

    def wrong(self):
        """How many elements of the result differ, after one operation on fresh input."""
        self.fill()
        self.run()
        return sum(int((block != self.expected(first, block.numel())).sum()) for first, block in self.results())

    def results(self):
        """The blocks of the output; none reaches from one rank's part of an all-gather into another's."""
        if self.name != "all-gather":
            return blocks(self.output)
        parts = (self.output[r * self.part : (r + 1) * self.part] for r in range(self.size))
        return ((r * self.part + first, block) for r, part in enumerate(parts) for first, block in blocks(part))

    def expected(self, first, count):
        """What elements first..first+count of the output must be."""
        if self.name == "all-gather":
            return pattern(first // self.part, first, count, self.op).to(self.dtype)
        if self.name == "broadcast":
            return pattern(0, first, count, self.op).to(self.dtype)
        start = self.rank * self.part if self.name == "reduce-scatter" else 0
        return reduced(self.size, start + first, count, self.op).to(self.dtype)


def cpu_seconds():
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(command, rank, size):
    """Runs one command, which all ranks do together, and returns the answer."""
    this = Round(command, rank, size)
    iterations = command["iterations"]
    for _ in range(command["warmup"]):
        this.run()
    dist.barrier()
    cpu, start = cpu_seconds(), time.perf_counter()
    for _ in range(iterations):
        this.run()
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    wrong = this.wrong() if command["check"] else 0
    return {"us": seconds * 1e6 / iterations, "wrong": wrong, "cpu_s": cpu, "in_place": this.in_place}


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ["RCCL_PEER_SOCKET"])
    lines = connection.makefile("r", encoding="utf-8")

    def say(message):
        connection.sendall((json.dumps(message) + "\n").encode())

    dist.init_process_group(
        "gloo", init_method="file://" + os.environ["RCCL_PEER_STORE"], rank=rank, world_size=size, timeout=TIMEOUT
    )
    dist.barrier()
    say({"peer": "gloo", "version": f"torch {torch.__version__}", "rank": rank, "size": size, "pid": os.getpid()})
    for line in lines:
        try:
            say(measure(json.loads(line), rank, size))
        except (Unsupported, KeyError) as error:
            # Every rank refuses the same command before it communicates, so that they stay in step.
            say({"error": f"{type(error).__name__}: {error}"})
    # The end of the socket is the end of the work. Without a group there is nothing to wait for.
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
