// What kafkajs is tried with: node kafkajs.js AREA BROKER NAME, where NAME begins every topic and group; exit 1 and a
// line if something does not hold.
import { CompressionTypes, Kafka, logLevel } from 'kafkajs'

const [area, broker, name] = process.argv.slice(2)
const partitions = 3
const kafka = new Kafka({ clientId: 'tried', brokers: [broker], logLevel: logLevel.NOTHING })
const admin = kafka.admin()

function equal(seen, expected, what) {
  if (String(seen) !== String(expected)) throw new Error(`${what}: ${seen} instead of ${expected}`)
}

async function made(topic) {
  await admin.createTopics({ topics: [{ topic, numPartitions: partitions }] })
  return topic
}

function messages(count) {
  const all = Array.from({ length: count }, (_, number) => ({
    partition: number % partitions, value: `v${number}`, headers: { n: String(number) },
  }))
  all[0] = { ...all[0], key: 'key of nothing', value: null }
  return all
}

async function sent(topic, count, settings = {}, compression = CompressionTypes.None) {
  const producer = kafka.producer(settings)
  await producer.connect()
  await producer.send({ topic, messages: messages(count), compression })
  await producer.disconnect()
}

// The members of a group read until `isDone` of what they saw, by partition and offset.
async function read(topic, groupId, isDone, members = 1, settings = {}) {
  const seen = new Map()
  const readers = await Promise.all(Array.from({ length: members }, async (_, member) => {
    const reader = kafka.consumer({ groupId, heartbeatInterval: 200, rebalanceTimeout: 5000, ...settings })
    await reader.connect()
    await reader.subscribe({ topic, fromBeginning: true })
    await reader.run({
      autoCommitThreshold: 1,
      eachMessage: async ({ partition, message }) => {
        seen.set(`${partition}/${message.offset}`, { ...message, partition, member })
      },
    })
    return reader
  }))
  while (!isDone(seen)) await new Promise((resolve) => setTimeout(resolve, 50))
  await Promise.all(readers.map((reader) => reader.disconnect()))
  return seen
}

const areas = {
  async produce() {
    for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
      const topic = await made(`${name}-${compression}`)
      await sent(topic, 300, {}, compression)
      await read(topic, topic, (seen) => seen.size === 300)
    }
    const topic = await made(`${name}-idempotent`)
    await sent(topic, 30, { idempotent: true, maxInFlightRequests: 1 })
    await read(topic, topic, (seen) => seen.size === 30)
  },

  async consume() {
    const topic = await made(name)
    await sent(topic, 90)
    const first = (await read(topic, name, (seen) => seen.size === 90)).get('0/0')
    equal(first.key, 'key of nothing', 'the first key')
    equal(first.value, null, 'a null value')
    equal(first.headers.n, '0', 'a header')
    const reader = kafka.consumer({ groupId: `${name}-seeking` })
    await reader.connect()
    await reader.subscribe({ topic })
    const sought = new Promise((resolve) => {
      reader.run({ eachMessage: async ({ partition, message }) => partition === 1 && resolve(message.offset) })
    })
    reader.seek({ topic, partition: 1, offset: '20' })
    equal(await sought, 20, 'after a seek')
    await reader.disconnect()
  },

  async groups() {
    const topic = await made(name)
    await sent(topic, 90)
    const membersOf = (seen) => new Set([...seen.values()].map((message) => message.member)).size
    const more = setInterval(() => sent(topic, 30), 500)
    await read(topic, name, (seen) => seen.size >= 90 && membersOf(seen) === 2, 2)
    clearInterval(more)
    const [{ partitions: committed }] = await admin.fetchOffsets({ groupId: name, topics: [topic] })
    equal(committed.some(({ offset }) => Number(offset) >= 30), true, 'committed offsets')
    await admin.deleteGroups([name])
  },

  async admin() {
    const topic = await made(name)
    await admin.createPartitions({ topicPartitions: [{ topic, count: partitions + 2 }] })
    const { topics: [{ partitions: described }] } = await admin.fetchTopicMetadata({ topics: [topic] })
    equal(described.length, partitions + 2, 'partitions')
    const resource = { type: 2, name: topic }
    await admin.alterConfigs({
      resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '86400000' }] }],
    })
    const configs = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
    equal(configs.resources[0].configEntries[0].configValue, '86400000', 'retention.ms')
    await sent(topic, 30)
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '5' }] })
    const offsets = (await admin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0)
    equal([offsets.low, offsets.high], [5, 10], 'log start and end')
    await admin.deleteTopics({ topics: [topic] })
  },

  async transactions() {
    const topic = await made(name)
    const producer = kafka.producer({ transactionalId: name, idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    for (const end of ['abort', 'commit']) {
      const transaction = await producer.transaction()
      await transaction.send({ topic, messages: messages(30) })
      await transaction[end]()
    }
    await producer.disconnect()
    await read(topic, `${name}-committed`, (seen) => seen.size === 30)
    await read(topic, `${name}-all`, (seen) => seen.size === 60, 1, { readUncommitted: true })
  },
}

await admin.connect()
await areas[area]()
await admin.disconnect()
