"""NCCL over its network transports: a rank that checks or measures, for `cargo xtask bench-plugin`.

Two ranks of one machine take each other to be on different ones, since each has its own NCCL_HOSTID; so NCCL uses the
network between them, also where both are on one GPU. RANK, WORLD_SIZE, STORE (a file that both see) and whatever NCCL is
to be told come from the environment.

    nccl_net.py check     every collective, DDP against Gloo, destroy and init again; prints "ok" lines
    nccl_net.py killed    rank 1 dies; rank 0 prints how long it took until torch raised (TORCH_NCCL_BLOCKING_WAIT=1 must be
                          set: without it torch ends the process instead of raising)
    nccl_net.py measure   reads "COLLECTIVE BYTES ITERATIONS" lines, prints one JSON object a line
"""

import datetime
import json
import os
import resource
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count())


def init(name, backend="nccl"):
    store = dist.FileStore(os.environ["STORE"] + name, WORLD)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD, timeout=timeout)


def values(seed, count, dtype=torch.int64):
    """Numbers that differ by rank, position and seed, small enough to be added exactly in every type."""
    return ((torch.arange(count, device=DEVICE) * 7 + seed * 13) % 31 - 15).to(dtype)


def expect(what, got, wanted):
    wrong = int((got != wanted).sum())
    if wrong:
        raise SystemExit(f"{what}: {wrong} of {got.numel()} elements are wrong")


def check_collectives():
    for count in [1, 2, 3, 17, 255, 1000, 4097, 65_537, 1 << 18, (1 << 20) + 1, 5_000_003, 1 << 24]:
        for dtype in [torch.float32, torch.bfloat16] if count > 1 << 18 else [torch.float32, torch.int64, torch.float16]:
            tensor = values(RANK, count, dtype)
            dist.all_reduce(tensor)
            expect(f"all_reduce {count} {dtype}", tensor, sum(values(r, count, dtype) for r in range(WORLD)))
    print("ok all_reduce", flush=True)
    for count in [1, 1000, 1 << 20, 3_000_001]:
        tensor = values(RANK, count)
        dist.broadcast(tensor, 1)
        expect(f"broadcast {count}", tensor, values(1, count))
        gathered = torch.empty(WORLD * count, dtype=torch.int64, device=DEVICE)
        dist.all_gather_into_tensor(gathered, values(RANK, count))
        expect(f"all_gather {count}", gathered, torch.cat([values(r, count) for r in range(WORLD)]))
        part = torch.empty(count, dtype=torch.int64, device=DEVICE)
        dist.reduce_scatter_tensor(part, values(RANK, WORLD * count))
        wanted = sum(values(r, WORLD * count) for r in range(WORLD))
        expect(f"reduce_scatter {count}", part, wanted[RANK * count : (RANK + 1) * count])
        mixed = torch.empty(WORLD * count, dtype=torch.int64, device=DEVICE)
        dist.all_to_all_single(mixed, values(RANK, WORLD * count))
        wanted = [values(r, WORLD * count)[RANK * count : (RANK + 1) * count] for r in range(WORLD)]
        expect(f"all_to_all {count}", mixed, torch.cat(wanted))
        there = torch.empty(count, dtype=torch.int64, device=DEVICE)
        ops = [
            dist.P2POp(dist.isend, values(RANK, count), (RANK + 1) % WORLD),
            dist.P2POp(dist.irecv, there, (RANK - 1) % WORLD),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        expect(f"send/recv {count}", there, values((RANK - 1) % WORLD, count))
    print("ok broadcast all_gather reduce_scatter all_to_all send/recv", flush=True)


def check_ddp():
    """Steps of the same model over NCCL and over Gloo end in the same parameters, bit for bit: two ranks add in one way."""
    gloo = dist.new_group(backend="gloo")
    outcome = []
    for group, device in [(None, DEVICE), (gloo, DEVICE)]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64)).to(device)
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        torch.manual_seed(100 + RANK)
        for _ in range(5):
            optimizer.zero_grad()
            ddp(torch.randn(32, 256, device=device)).square().mean().backward()
            optimizer.step()
        outcome.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    expect("DDP over NCCL and over Gloo", outcome[0], outcome[1])
    print("ok ddp", flush=True)


def check():
    torch.use_deterministic_algorithms(False)
    for attempt in range(3):
        init(str(attempt))
        tensor = values(RANK, 100_000)
        dist.all_reduce(tensor)
        expect("after init", tensor, sum(values(r, 100_000) for r in range(WORLD)))
        if attempt == 0:
            check_collectives()
            check_ddp()
        dist.destroy_process_group()
    print("ok destroy and init again", flush=True)


def killed():
    init("killed")
    tensor = torch.ones(1 << 22, device=DEVICE)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    start = time.monotonic()
    threading.Timer(30, lambda: (print("not raised within 30 s", flush=True), os._exit(1))).start()
    try:
        dist.all_reduce(tensor, async_op=True).wait()
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        print(f"ok raised after {time.monotonic() - start:.1f} s: {first[:200]}", flush=True)
        os._exit(0)
    print("not raised", flush=True)
    os._exit(1)


def seconds_of_processor():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(collective, tensor, other):
    if collective == "all-reduce":
        dist.all_reduce(tensor)
    elif collective == "send-recv":
        work = dist.isend(tensor, 1) if RANK == 0 else dist.irecv(tensor, 0)
        work.wait()
    elif collective == "all-to-all":
        dist.all_to_all_single(other, tensor)
    else:
        raise SystemExit(f"unknown collective {collective}")


def measure():
    init("measure")
    barrier = torch.zeros(1, device=DEVICE)
    dist.all_reduce(barrier)
    torch.cuda.synchronize()
    print(json.dumps({"nccl": ".".join(map(str, torch.cuda.nccl.version())), "torch": torch.__version__,
                      "gpu": torch.cuda.get_device_name(DEVICE), "gpus": torch.cuda.device_count()}), flush=True)
    for line in sys.stdin:
        collective, size, iterations = line.split()
        count, iterations = max(int(size) // 4, 1), int(iterations)
        tensor = torch.full((count,), float(RANK), device=DEVICE)
        other = torch.empty_like(tensor)
        for _ in range(3):
            run(collective, tensor, other)
        tensor.fill_(float(RANK + 1))
        run(collective, tensor, other)
        wanted = {"all-reduce": WORLD * (WORLD + 1) / 2, "send-recv": 1.0}.get(collective)
        wrong = 0 if wanted is None else int((tensor != wanted).sum())
        tensor.zero_()
        dist.all_reduce(barrier)
        torch.cuda.synchronize()
        done = torch.cuda.Event(blocking=True)
        processor, start = seconds_of_processor(), time.perf_counter()
        for _ in range(iterations):
            run(collective, tensor, other)
        done.record()
        done.synchronize()
        elapsed, processor = time.perf_counter() - start, seconds_of_processor() - processor
        print(json.dumps({"us": elapsed / iterations * 1e6, "cpu_s": processor / iterations, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    {"check": check, "killed": killed, "measure": measure}[sys.argv[1]]()
    if dist.is_initialized():
        dist.destroy_process_group()
