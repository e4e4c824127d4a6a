// What kafkajs does with a broker: ACTION ADDRESS TOPIC [COUNT | GROUP], with the actions of table.py.
const { Kafka, logLevel } = require("kafkajs");

const [action, address, topic, more] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR });

async function consume() {
    const consumer = kafka.consumer({ groupId: `consume-${process.pid}` });
    let left = Number(more);
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    await new Promise((done) => {
        consumer.run({
            eachMessage: async ({ message }) => {
                console.log(message.value.toString());
                left -= 1;
                if (left === 0) done();
            },
        });
    });
    await consumer.disconnect();
}

async function member() {
    const consumer = kafka.consumer({
        groupId: more,
        sessionTimeout: 3000,
        heartbeatInterval: 300,
        rebalanceTimeout: 3000,
        maxWaitTimeInMs: 300,
        metadataMaxAge: 1000,
    });
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
        const partitions = payload.memberAssignment[topic] ?? [];
        console.log(["assigned", ...partitions.sort((one, other) => one - other)].join(" "));
    });
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
            console.log(`record ${partition} ${message.offset}`);
            const offset = String(Number(message.offset) + 1);
            await consumer.commitOffsets([{ topic, partition, offset }]);
            console.log(`committed ${partition} ${message.offset}`);
        },
    });
    await new Promise((done) => process.once("SIGTERM", done));
    await consumer.disconnect();
    console.log("closed");
}

async function list() {
    const admin = kafka.admin();
    await admin.connect();
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
    console.log(topic, topics[0].partitions.length);
    await admin.disconnect();
}

async function produce() {
    const producer = kafka.producer();
    await producer.connect();
    for (let number = 0; number < Number(more); number += 1) {
        await producer.send({ topic, messages: [{ partition: 0, value: String(number) }] });
    }
    await producer.disconnect();
}

const actions = { list, produce, consume, member };
actions[action]().catch((error) => {
    console.error(error.message);
    process.exit(1);
});
