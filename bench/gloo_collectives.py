"""The same loop on torch.distributed with Gloo: torchrun --nproc-per-node 2 gloo_collectives.py [--calls ...] [--bytes ...] [--seconds S]"""
import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist

BATCHES = 9


def make_call(name, count, rank, size):
    part = count // size
    send = torch.zeros(count, dtype=torch.float32)
    recv = torch.zeros(count, dtype=torch.float32)

    def send_recv():
        works = [dist.isend(send, (rank + 1) % size), dist.irecv(recv, (rank + size - 1) % size)]
        for work in works:
            work.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(send),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(recv[:part], send[: part * size]),
        "all_gather": lambda: dist.all_gather_into_tensor(recv[: part * size], send[:part]),
        "all_to_all": lambda: dist.all_to_all_single(recv[: part * size], send[: part * size]),
        "broadcast": lambda: dist.broadcast(send, 0),
        "send_recv": send_recv,
        "barrier": dist.barrier,
    }[name]


def largest(value):
    cell = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(cell, dist.ReduceOp.MAX)
    return cell.item()


def measure(call, calls):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", default="all_reduce")
    parser.add_argument("--bytes", default="8,1024,4096,65536,1048576,16777216")
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    for name in options.calls.split(","):
        for size_bytes in [0] if name == "barrier" else map(int, options.bytes.split(",")):
            call = make_call(name, size_bytes // 4, rank, size)
            try:
                call()
            except RuntimeError as error:  # not every call exists in every release
                if rank == 0:
                    print(json.dumps({"bench": "collectives", "maker": "gloo", "call": name, "error": str(error).splitlines()[0]}))
                break
            calls = max(3, min(20000, int(options.seconds / BATCHES / largest(measure(call, 3)))))
            each = largest(statistics.median(measure(call, calls) for _ in range(BATCHES)))
            if rank == 0:
                print(json.dumps({"bench": "collectives", "maker": "gloo", "variant": "torch " + torch.__version__, "call": name, "ranks": size,
                                  "bytes": size_bytes, "us": round(each * 1e6, 3), "gb_s": round(size_bytes / each * 1e-9, 3), "calls": calls * BATCHES}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
