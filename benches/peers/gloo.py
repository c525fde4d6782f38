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


def pattern(rank, first, count, op, dtype):
    """Elements first..first+count of the input of `rank` (see README.md: the pattern)."""
    index = torch.arange(first, first + count, dtype=torch.int64)
    mixed = ((index * 2654435761 + rank * 40503) & 0xFFFFFFFF) >> 16
    return (mixed % 2 + 1 if op == "prod" else mixed % 5).to(dtype)


def reduced(size, first, count, op, dtype):
    """What every element of the reduction over all ranks must be."""
    total = pattern(0, first, count, op, torch.int64)
    for rank in range(1, size):
        term = pattern(rank, first, count, op, torch.int64)
        if op == "sum":
            total = total + term
        elif op == "prod":
            total = total * term
        elif op == "min":
            total = torch.minimum(total, term)
        else:
            total = torch.maximum(total, term)
    return total.to(dtype)


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
        self.input.copy_(pattern(self.rank, first, self.input.numel(), self.op, self.dtype))

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
        if self.name == "all-gather":
            parts = [pattern(r, r * self.part, self.part, self.op, self.dtype) for r in range(self.size)]
            expected = torch.cat(parts)
        elif self.name == "broadcast":
            expected = pattern(0, 0, self.part, self.op, self.dtype)
        else:
            first = self.rank * self.part if self.name == "reduce-scatter" else 0
            expected = reduced(self.size, first, self.part, self.op, self.dtype)
        return int((self.output != expected).sum())


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
