#!/usr/bin/env python3
"""Random requests to our store and to PyTorch's at the same time: every reply has to be the same.

    python3 test/soak/store_against_torch.py BUILD_FOLDER [REQUESTS] [SEED]

Needs torch 2.12 or later (all operations). Three connections to each server share a few keys, so that waits meet sets. After each request every
connection is asked for an echo: what stands before the echo is the reply, or the end of a wait. Not sent: a second WAIT while one is pending (its
replies mean nothing in either), a COMPARE_SET of a key that somebody may wait for (PyTorch's server wakes the waiter even if nothing was stored),
and a WAIT for a queue among other keys (PyTorch's server then does not see what is queued already).
"""
import random, socket, struct, subprocess, sys

import torch
from torch.distributed import TCPStore

KEYS = [b"/a", b"/b", b"/c", b"/q", b"/n"]
VALUES = [b"", b"1", b"-7", b" 12x", b"text", b"\x00\xff", b"x" * 300]


def u64(n):
    return struct.pack("<Q", n & (2**64 - 1))


def string(b):
    return u64(len(b)) + b


def random_request(r):
    key, value = string(r.choice(KEYS)), string(r.choice(VALUES))
    some = [r.choice(KEYS) for _ in range(r.randint(0, 3))]
    if len(some) > 1:
        some = [k for k in some if k != b"/q"]
    keys = u64(len(some)) + b"".join(map(string, some))
    pairs = u64(len(some)) + b"".join(string(k) + string(r.choice(VALUES)) for k in some)
    return r.choice(
        [b"\x01" + key + value] * 2
        + [b"\x02" + string(b"/s") + string(r.choice(VALUES[:3])) + string(r.choice(VALUES[:3]))] * 2
        + [b"\x03" + key] * 2
        + [b"\x04" + string(b"/n") + u64(r.choice([1, -1, 5, 0]))] * 2
        + [b"\x04" + key + u64(1)]
        + [b"\x05" + keys] * 2
        + [b"\x06" + keys] * 3
        + [b"\x07", b"\x11"]
        + [b"\x08" + key] * 3
        + [b"\x09" + key + value, b"\x0a" + keys, b"\x0b" + pairs]
        + [b"\x0c"] * 2
        + [b"\x0e" + string(b"/q") + value, b"\x0f" + string(b"/q"), b"\x10" + string(b"/q")]
        + [b"\x12" + string(r.choice([b"/x%d" % i for i in range(40)])) + u64(r.choice([1, 2]))]
    )


class Client:
    def __init__(self, port):
        self.port, self.nonce = port, 0
        self.connect()

    def connect(self):
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.settimeout(20)
        self.socket.sendall(bytes.fromhex("00cef7853c"))

    def send(self, request):
        try:
            self.socket.sendall(request)
        except OSError:
            pass

    def settle(self):
        """What came since the last call; None when the server closed the connection."""
        self.nonce += 1
        echo = struct.pack("<I", 0xA5000000 + self.nonce)
        got = b""
        self.send(b"\x0d" + echo)
        try:
            while not got.endswith(echo):
                more = self.socket.recv(65536)
                if not more:
                    raise ConnectionError
                got += more
        except ConnectionError:
            self.socket.close()
            self.connect()
            return None
        return got[: -len(echo)]


def as_set(reply):
    """The keys of LIST_KEYS come in any order."""
    count, at, keys = struct.unpack_from("<Q", reply)[0], 8, []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", reply, at)
        keys.append(reply[at + 8 : at + 8 + size])
        at += 8 + size
    return sorted(keys), reply[at:]


def main():
    build, n_requests, seed = sys.argv[1], int((sys.argv + ["", "20000"])[2] or 20000), int((sys.argv + ["", "", "1"])[3] or 1)
    theirs = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run = subprocess.Popen([f"{build}/cli/rankloom", "run", "--no-prefix", "--", "sh", "-c", "echo $MASTER_PORT; exec sleep 100000"], stdout=subprocess.PIPE)
    ours_port = int(run.stdout.readline())
    r, differences, n_closed, waiting = random.Random(seed), 0, 0, [False] * 3
    pairs = [(Client(theirs.port), Client(ours_port)) for _ in range(3)]
    names = [bytes([0x08]) + string(k) for k in [b"init/"]]
    for t, o in pairs[:1]:  # PyTorch's own client left a key
        for n in names:
            t.send(n), o.send(n)
        t.settle(), o.settle()
    for i in range(n_requests):
        which, request = r.randrange(3), random_request(r)
        if request[0] in (0x06, 0x12) and waiting[which]:
            request = b"\x0c"
        waiting[which] = request[0] in (0x06, 0x12) or (waiting[which] and request[0] != 0x0C)
        for c in pairs[which]:
            c.send(request)
        # the sender first: only then have the others' waits met what it did
        for p in [which] + [x for x in range(3) if x != which]:
            their, our = (c.settle() for c in pairs[p])
            n_closed += their is None
            waiting[p] = waiting[p] and their is not None  # a wait that ended is cancelled all the same: nothing is pending then
            if request == b"\x11" and p == which and their and our:
                their, our = as_set(their), as_set(our)
            if their != our:
                differences += 1
                print(f"request {i} {request!r} on connection {which}; connection {p}: theirs {their!r}, ours {our!r}")
                if differences > 10:
                    run.terminate()
                    sys.exit(1)
    run.terminate()
    run.wait()
    print(f"torch {torch.__version__}: {n_requests} requests of seed {seed}, {n_closed} connections closed by both, {differences} differences")
    sys.exit(differences > 0)


main()
