"""Consumer groups: members come, leave and are killed, and every record is read all the same. ADDRESS CHECK."""

import collections
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import checks

PARTITIONS, PATIENCE = 6, 25
# As the members' script has it.
SESSION = 3
KCAT = ["auto.offset.reset=earliest", "heartbeat.interval.ms=300", "topic.metadata.refresh.interval.ms=1000"]
KCAT += [f"session.timeout.ms={1000 * SESSION}"]


class Member:
    """A stock client in a process of its own."""

    def __init__(self, kind, address, instance=None):
        script = pathlib.Path(__file__).with_name("group_member.py")
        command = [sys.executable, "-B", script, kind, address, "g", "t", *([instance] if instance else [])]
        if kind == "kcat":
            settings = [word for setting in KCAT for word in ("-X", setting)]
            command = ["kcat", "-b", address, "-G", "g", "-u", "-f", "record %p %o\n", *settings, "t"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, self.assigned = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def events(self):
        """What it has told since, as (word, partition, offset); its assignment is noted."""
        while not self.lines.empty():
            line = self.lines.get()
            # kcat: % Group g rebalanced (memberid x): assigned: t [0], t [1]
            if ": assigned: " in line:
                self.assigned = [int(index) for index in re.findall(r"t \[(\d+)\]", line)]
            elif line.startswith("assigned"):
                self.assigned = [int(index) for index in line.split()[1:]]
            elif line.startswith(("record ", "committed ")):
                word, partition, offset = line.split()
                yield word, int(partition), int(offset)

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        checks.equal(self.process.wait(PATIENCE), 0)

    def kill(self):
        self.process.kill()
        self.process.wait()


class World:
    """A topic, and what has become of its records."""

    def __init__(self, address):
        self.address = address
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(10)
        self.producer = Producer({"bootstrap.servers": address})
        self.produced, self.members = 0, []
        self.read, self.committed = collections.Counter(), {}

    def join(self, kind, instance=None):
        self.members.append(Member(kind, self.address, instance))

    def produce(self):
        for partition in range(PARTITIONS):
            self.producer.produce("t", b"value", partition=partition)
        checks.equal(self.producer.flush(20), 0)
        self.produced += PARTITIONS

    def listen(self):
        for member in self.members:
            for word, partition, offset in member.events():
                if word == "committed":
                    self.committed[partition] = offset
                elif offset <= self.committed.get(partition, -1):
                    sys.exit(f"{partition}:{offset} was read once more, and had been committed")
                else:
                    self.read[partition, offset] += 1

    def wait(self, what, done, patience=PATIENCE):
        begun = time.monotonic()
        self.listen()
        while not done():
            if time.monotonic() - begun > patience:
                sys.exit(f"no {what}: {[member.assigned for member in self.members]}, {len(self.read)} records")
            time.sleep(0.005)
            self.listen()

    def settle(self, repeats=0, patience=PATIENCE):
        """Waits until the members share the partitions, each with some, and everything was read: once, but for `repeats`."""
        shared = lambda: sorted(index for member in self.members for index in member.assigned) == list(range(PARTITIONS))
        self.wait("shares", lambda: shared() and all(member.assigned for member in self.members), patience)
        self.produce()
        self.wait("records", lambda: len(self.read) >= self.produced)
        checks.equal(len(self.read), self.produced)
        checks.equal(self.read.total() - self.produced <= repeats, True)

    def finish(self):
        for member in self.members:
            member.leave()
        self.members = []


def come_and_go(kinds):
    """One, two, three members; one leaves, one comes again, one is killed."""

    def check(address):
        world = World(address)
        for kind in kinds:
            world.join(kind)
            world.settle()
        # The others need not wait for its session to expire.
        world.members.pop(1).leave()
        world.settle(patience=SESSION)
        world.join(kinds[1])
        world.settle()
        # No other member is told of this one; what it had not committed is read again.
        world.members.pop(0).kill()
        world.settle(PARTITIONS, SESSION + 1)
        world.finish()

    return check


def resume(address):
    """All members end, and another one goes on where they were."""
    world = World(address)
    for kind in ("kafka_python", "kcat", "confluent_kafka", "kafka_python"):
        world.join(kind)
        world.settle()
        world.finish()
        # Produced while no member is there.
        world.produce()


def restart(address):
    """A static member is killed and comes again within its session: the other one does not even notice."""
    world = World(address)
    # What a member has read and not committed when it is killed is read again.
    repeats = 4 * PARTITIONS
    for kind in ("confluent_kafka", "kafka_python"):
        for name in ("a", "b"):
            world.join(kind, name)
        world.settle(repeats)
        other = world.members[0]
        other.assigned = before = list(other.assigned)
        world.members.pop(1).kill()
        world.join(kind, "b")
        world.settle(repeats)
        # Told anew, it would have a list of its own.
        checks.equal(other.assigned is before, True)
        for member in world.members:
            member.kill()
        world.members = []
        # Until their sessions are over.
        time.sleep(16)


checks.run(
    {
        "confluent_kafka": come_and_go(["confluent_kafka"] * 3),
        "cooperative": come_and_go(["cooperative"] * 3),
        "kafka_python": come_and_go(["kafka_python"] * 3),
        "kcat": come_and_go(["kcat"] * 3),
        "mixed": come_and_go(["kafka_python", "confluent_kafka", "kcat"]),
        "resume": resume,
        "restart": restart,
    }
)
