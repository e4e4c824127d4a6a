"""What stock clients can do with the broker: BROKER [CLIENT]. Prints the row of the README for a client, or for each that
is installed, and exits with an error if it has another one.

    python -m pip install aiokafka confluent-kafka kafka-python
    npm install --prefix .venv kafkajs      # or elsewhere, and NODE_PATH says where
    apt-get install kcat nodejs golang golang-github-shopify-sarama-dev golang-github-segmentio-kafka-go-dev

Of each client there is a small program (`python_clients.py`, `kafkajs.js`, `go_clients.go`) that knows these actions:

    list     ADDRESS TOPIC          prints the topic and how many partitions it has
    produce  ADDRESS TOPIC COUNT    produces 0, 1, 2, ...
    consume  ADDRESS TOPIC COUNT    prints as many values, from the first
    member   ADDRESS TOPIC GROUP    is a member of a group, and says what `group_member.py` says
"""

import concurrent.futures
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import checks
import world
from world import HERE, PARTITIONS, SESSION, World

COUNT, PATIENCE = 5, 15


def python(module):
    return lambda *words: [sys.executable, "-B", HERE / "python_clients.py", module, *words]


def go(client):
    return lambda *words: [world.GO_CLIENTS, client, *words]


def kcat(action, address, topic, count="0"):
    if action == "produce":
        lines = "".join(f"{number}\\n" for number in range(int(count)))
        return ["sh", "-c", f"printf '{lines}' | kcat -b {address} -P -t {topic}"]
    if action == "list":
        words = r"""s/.*"\(.*\)" with \(.*\) part.*/\1 \2/p"""
        return ["sh", "-c", f"kcat -b {address} -L -t {topic} | sed -n '{words}'"]
    return ["kcat", "-b", address, "-C", "-t", topic, "-o", "beginning", "-c", count]


def node(*words):
    return ["node", HERE / "kafkajs.js", *words]


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def version_of_kcat():
    versions = re.findall(r"(?:Version|librdkafka) ([\d.]+)", output("kcat", "-V"))
    return "{} (librdkafka {})".format(*versions) if versions else None


def version_of_module(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_of_confluent():
    import confluent_kafka

    return f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"


def version_of_debian(package):
    found = output("dpkg-query", "-W", "-f", "${Version}", package)
    return found.split("-")[0] or None


def version_of_kafkajs():
    return output("node", "-p", "require('kafkajs/package.json').version").strip() or None


# Name, language, version if it is installed, what runs an action, kind of its members.
CLIENTS = [
    ("kcat", "C", version_of_kcat, kcat, "kcat"),
    ("confluent-kafka", "Python, C", version_of_confluent, python("confluent_kafka"), "confluent_kafka"),
    ("kafka-python", "Python", lambda: version_of_module("kafka-python"), python("kafka_python"), "kafka_python"),
    ("aiokafka", "Python", lambda: version_of_module("aiokafka"), python("aiokafka"), "aiokafka"),
    ("kafkajs", "JavaScript", version_of_kafkajs, node, "kafkajs"),
    ("sarama", "Go", lambda: version_of_debian("golang-github-shopify-sarama-dev"), go("sarama"), "sarama"),
    ("kafka-go", "Go", lambda: version_of_debian("golang-github-segmentio-kafka-go-dev"), go("kafka-go"), "kafka-go"),
]


def build_go_clients(folder):
    """With the sources that Debian has of both."""
    environment = {**os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}
    world.GO_CLIENTS = f"{folder}/go_clients"
    command = ["go", "build", "-o", world.GO_CLIENTS, HERE / "go_clients.go"]
    subprocess.run(command, env={"GOCACHE": f"{folder}/cache", **environment}, check=True, stderr=subprocess.DEVNULL)


class Broker:
    def __init__(self, program):
        command = [program, "serve", "--listen", "127.0.0.1:0"]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.address = self.process.stdout.readline().split()[-1]

    def end(self):
        """Returns what it has refused."""
        self.process.terminate()
        self.process.wait()
        self.log.seek(0)
        return sorted(set(re.findall(r": (\w+ v\d+) not supported", self.log.read())))


def works(check):
    try:
        check()
    except (SystemExit, subprocess.SubprocessError, AssertionError) as error:
        print(f"  {error}", file=sys.stderr)
        return "no"
    return "yes"


def row(program, name, language, version, run, kind):
    broker = Broker(program)
    address, group = broker.address, None

    def act(*words):
        done = subprocess.run(run(*words), capture_output=True, text=True, timeout=PATIENCE)
        checks.equal((done.returncode, done.stderr if done.returncode else ""), (0, ""))
        return done.stdout.splitlines()

    admin = AdminClient(world.settings(address))
    for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in ("mine", "other")]).values():
        created.result(10)
    producer = Producer(world.settings(address))
    expected = [str(number) for number in range(COUNT)]
    for value in expected:
        producer.produce("other", value)
    checks.equal(producer.flush(10), 0)
    watermarks = lambda: output("kcat", "-b", address, "-C", "-t", "mine", "-o", "beginning", "-e").splitlines()

    def produce():
        act("produce", address, "mine", str(COUNT))
        checks.equal(watermarks(), expected)

    def share():
        nonlocal group
        checks.equal(cells[-1], "yes")
        group = World(address)
        for _ in range(2):
            group.join(kind)
        group.settle(10 * PARTITIONS)

    def take_over():
        group.members.pop(0).kill()
        group.settle(10 * PARTITIONS, SESSION + 3)
        group.finish()

    cells = [works(lambda: checks.equal(act("list", address, "other"), ["other 1"]))]
    cells.append(works(produce))
    cells.append(works(lambda: checks.equal(act("consume", address, "other", str(COUNT)), expected)))
    cells.append(works(share))
    cells.append(works(take_over) if cells[-1] == "yes" else "no")
    for member in group.members if group else []:
        member.kill()
    refused = broker.end()
    fails = f"{', '.join(refused)}" or "nothing"
    return f"| {name} {version} | {language} | {' | '.join(cells)} | {fails} |"


def main():
    program, *wanted = sys.argv[1:]
    page = (HERE.parents[1] / "README.md").read_text().splitlines()
    os.environ.setdefault("NODE_PATH", str(HERE.parents[3] / ".venv" / "node_modules"))
    versions = [(client, client[2]()) for client in CLIENTS if not wanted or client[0] in wanted]
    for name in [client[0] for client, version in versions if version is None]:
        print(f"skipped: {name} is not installed", file=sys.stderr)
    installed = [(client, version) for client, version in versions if version is not None]
    # Each has a broker of its own, and most of the time they wait.
    workers = concurrent.futures.ThreadPoolExecutor(len(CLIENTS) + 1)
    with tempfile.TemporaryDirectory() as folder, workers:
        needs_go = any(client[1] == "Go" for client, _ in installed)
        built = workers.submit(build_go_clients, folder) if needs_go else None

        def row_of(client, version):
            name, language, _, run, kind = client
            if language == "Go":
                built.result()
            return row(program, name, language, version, run, kind)

        rows = [workers.submit(row_of, *found) for found in installed]
        rows = [found.result() for found in rows]
    print(*rows, sep="\n")
    wrong = [found for found in rows if found not in page]
    if wrong:
        sys.exit("\n".join(["the README has not:", *wrong]))


main()
