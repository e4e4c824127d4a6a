"""Members of a consumer group in processes of their own, and what has become of the records of their topic."""

import collections
import os
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


HERE = pathlib.Path(__file__).parent
# Built by table.py.
GO_CLIENTS = os.environ.get("GO_CLIENTS", "go_clients")


def command_of_member(kind, address, instance):
    if kind == "kcat":
        settings = [word for setting in KCAT for word in ("-X", setting)]
        return ["kcat", "-b", address, "-G", "g", "-u", "-f", "record %p %o\n", *settings, "t"]
    if kind in ("sarama", "kafka-go"):
        return [GO_CLIENTS, kind, "member", address, "t", "g"]
    if kind == "kafkajs":
        return ["node", HERE / "kafkajs.js", "member", address, "t", "g"]
    command = [sys.executable, "-B", HERE / "group_member.py", kind, address, "g", "t"]
    return [*command, instance] if instance else command


class Member:
    """A stock client in a process of its own."""

    def __init__(self, kind, address, instance=None):
        command = command_of_member(kind, address, instance)
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


def settings(address):
    # The broker may end before its clients.
    return {"bootstrap.servers": address, "log.connection.close": False}


class World:
    """A topic, and what has become of its records."""

    def __init__(self, address):
        self.address = address
        admin = AdminClient(settings(address))
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(10)
        self.producer = Producer(settings(address))
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
        """Waits until the members share the partitions, and everything was read: once, but for `repeats`."""
        assigned = lambda: sorted(index for member in self.members for index in member.assigned)
        shared = lambda: assigned() == list(range(PARTITIONS))
        self.wait("shares", lambda: shared() and all(member.assigned for member in self.members), patience)
        self.produce()
        self.wait("records", lambda: len(self.read) >= self.produced)
        checks.equal(len(self.read), self.produced)
        checks.equal(self.read.total() - self.produced <= repeats, True)

    def finish(self):
        for member in self.members:
            member.leave()
        self.members = []
