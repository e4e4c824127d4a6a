"""Consumer groups: members come, leave and are killed, and every record is read all the same. ADDRESS CHECK."""

import time

import checks
from world import PARTITIONS, SESSION, World

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
