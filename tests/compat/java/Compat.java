import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.AppInfoParser;

/** Kafka's Java clients: `java Compat AREA BOOTSTRAP PREFIX`; exits 1 with a stack if something does not hold. */
public final class Compat {
    /** An hour ago: young enough for every retention. */
    static final long BASE_MS = System.currentTimeMillis() - 3_600_000;
    static final boolean IS_3 = AppInfoParser.getVersion().startsWith("3.");
    static String bootstrap, prefix;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[1];
        prefix = arguments[2];
        switch (arguments[0]) {
            case "produce" -> produce();
            case "consume" -> consume();
            case "groups" -> groups();
            case "admin" -> admin();
            case "transactions" -> transactions();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.out.println("holds");
    }

    // --- produce ---------------------------------------------------------------------------------------

    static void produce() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            for (boolean idempotent : List.of(true, false)) {
                String topic = prefix + "-" + codec + "-" + idempotent;
                create(topic, 1, Map.of());
                Map<String, Object> settings = Map.of(
                    "compression.type", codec, "enable.idempotence", idempotent, "acks", idempotent ? "all" : "1");
                try (var producer = producer(settings)) {
                    List<java.util.concurrent.Future<RecordMetadata>> sent = new ArrayList<>();
                    for (int n = 0; n < 300; n++) {
                        var record = new ProducerRecord<byte[], byte[]>(
                            topic, 0, BASE_MS + n, n % 7 == 0 ? null : bytes("k" + n), n % 5 == 0 ? null : bytes("v" + n));
                        record.headers().add("n", bytes("" + n)).add("none", null);
                        sent.add(producer.send(record));
                    }
                    for (int n = 0; n < 300; n++) equal(sent.get(n).get().offset(), (long) n, "offset");
                }
                try (var consumer = consumer(null, Map.of())) {
                    consumer.assign(List.of(new TopicPartition(topic, 0)));
                    consumer.seekToBeginning(consumer.assignment());
                    int n = 0;
                    for (var record : poll(consumer, 300)) {
                        equal(record.offset(), (long) n, "offset");
                        equal(record.timestamp(), BASE_MS + n, "timestamp");
                        equal(text(record.key()), n % 7 == 0 ? null : "k" + n, "key");
                        equal(text(record.value()), n % 5 == 0 ? null : "v" + n, "value");
                        equal(text(record.headers().lastHeader("n").value()), "" + n, "header");
                        equal(record.headers().lastHeader("none").value(), null, "header without a value");
                        n++;
                    }
                }
            }
        // auto-created by the first send; a large record; a record that is too large
        try (var producer = producer(Map.of("max.request.size", 20_000_000))) {
            equal(producer.send(new ProducerRecord<>(prefix + "-auto", bytes("x"))).get().offset(), 0L, "offset");
            create(prefix + "-large", 1, Map.of("max.message.bytes", "12000000"));
            producer.send(new ProducerRecord<>(prefix + "-large", new byte[10_000_000])).get();
            fails(RecordTooLargeException.class,
                () -> producer.send(new ProducerRecord<>(prefix + "-large", new byte[13_000_000])).get());
        }
    }

    // --- consume -----------------------------------------------------------------------------------------

    static void consume() throws Exception {
        String topic = prefix + "-consume";
        create(topic, 3, Map.of());
        fill(topic, 3, 300);
        var first = new TopicPartition(topic, 0);
        var second = new TopicPartition(topic, 1);
        try (var consumer = consumer(null, Map.of("isolation.level", "read_committed", "max.poll.records", 1000))) {
            consumer.assign(List.of(first, second, new TopicPartition(topic, 2)));
            equal(consumer.beginningOffsets(List.of(first)).get(first), 0L, "beginning");
            equal(consumer.endOffsets(List.of(first)).get(first), 100L, "end");
            var times = consumer.offsetsForTimes(Map.of(first, BASE_MS + 150_500, second, BASE_MS + 1_000_000_000L));
            equal(times.get(first).offset(), 51L, "offset by time");
            equal(times.get(second), null, "offset of a time after the last");
            equal(poll(consumer, 300).size(), 300, "records");
            equal(consumer.currentLag(first).getAsLong(), 0L, "lag");
            consumer.seek(first, 98);
            equal(poll(consumer, 2).get(0).offset(), 98L, "offset after a seek");
            equal(consumer.partitionsFor(topic).size(), 3, "partitions");
            if (!consumer.listTopics().containsKey(topic)) throw new AssertionError("not listed");
            consumer.seek(first, 5_000);
            equal(poll(consumer, 1).get(0).offset(), 0L, "offset after a reset");
        }
    }

    // --- groups --------------------------------------------------------------------------------------------

    static void groups() throws Exception {
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "CooperativeStickyAssignor"))
            shares("org.apache.kafka.clients.consumer." + assignor, prefix + "-" + assignor.toLowerCase());
        staticMembers();
        byAdmin();
    }

    static void shares(String assignor, String name) throws Exception {
        create(name, 4, Map.of());
        fill(name, 4, 40);
        Map<String, Object> settings = Map.of("partition.assignment.strategy", assignor);
        try (var one = consumer(name, settings)) {
            one.subscribe(List.of(name));
            equal(poll(one, 40).size(), 40, "records");
            try (var two = consumer(name, settings)) {
                two.subscribe(List.of(name));
                until(() -> {
                    one.poll(Duration.ofMillis(20));
                    two.poll(Duration.ofMillis(20));
                    return one.assignment().size() == 2 && two.assignment().size() == 2;
                }, "two members share");
                one.commitSync();
            }
            until(() -> {
                one.poll(Duration.ofMillis(20));
                return one.assignment().size() == 4;
            }, "the one that is left has all");
            // The client answers committed() from a look-up that is under way: that of its new partitions must be over.
            for (var partition : one.assignment()) one.position(partition);
            Map<TopicPartition, OffsetAndMetadata> moved = new HashMap<>();
            for (var partition : one.assignment()) moved.put(partition, new OffsetAndMetadata(7, "note"));
            one.commitSync(moved);
            for (var found : one.committed(one.assignment()).values()) {
                equal(found.offset(), 7L, "committed");
                equal(found.metadata(), "note", "metadata");
            }
        }
        try (var again = consumer(name, settings)) {
            again.subscribe(List.of(name));
            equal(poll(again, 12).size(), 12, "records after the committed offsets");
        }
    }

    static void staticMembers() throws Exception {
        String name = prefix + "-static";
        create(name, 4, Map.of());
        var one = consumer(name, Map.of("group.instance.id", "one"));
        var two = consumer(name, Map.of("group.instance.id", "two"));
        try (one) {
            one.subscribe(List.of(name));
            two.subscribe(List.of(name));
            var first = two;
            until(() -> {
                one.poll(Duration.ofMillis(20));
                first.poll(Duration.ofMillis(20));
                return one.assignment().size() == 2 && first.assignment().size() == 2;
            }, "static members share");
            var before = two.assignment();
            int generation = one.groupMetadata().generationId();
            two.close();
            two = consumer(name, Map.of("group.instance.id", "two"));
            two.subscribe(List.of(name));
            var back = two;
            until(() -> {
                one.poll(Duration.ofMillis(20));
                back.poll(Duration.ofMillis(20));
                return back.assignment().size() == 2;
            }, "the static member is back");
            equal(two.assignment(), before, "its partitions");
            equal(one.groupMetadata().generationId(), generation, "generation: no rebalance was needed");
            try (var admin = admin_()) {
                admin.removeMembersFromConsumerGroup(
                    name, new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("two")))).all().get();
            }
        } finally {
            two.close();
        }
    }

    static void byAdmin() throws Exception {
        String name = prefix + "-described";
        create(name, 2, Map.of());
        fill(name, 2, 20);
        var zero = new TopicPartition(name, 0);
        var one = new TopicPartition(name, 1);
        try (var admin = admin_()) {
            try (var consumer = consumer(name, Map.of("client.id", "described"))) {
                consumer.subscribe(List.of(name));
                poll(consumer, 20);
                consumer.commitSync();
                var described = admin.describeConsumerGroups(List.of(name)).all().get().get(name);
                equal(described.state(), ConsumerGroupState.STABLE, "state");
                equal(described.partitionAssignor(), "range", "assignor");
                var member = described.members().iterator().next();
                equal(member.clientId(), "described", "client id");
                equal(member.assignment().topicPartitions(), Set.of(zero, one), "assignment");
                equal(described.type(), GroupType.CLASSIC, "type");
                fails(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(name)).all().get());
                fails(GroupSubscribedToTopicException.class,
                    () -> admin.deleteConsumerGroupOffsets(name, Set.of(zero)).all().get());
            }
            if (admin.listConsumerGroups().all().get().stream().noneMatch(group -> group.groupId().equals(name)))
                throw new AssertionError("not listed");
            admin.alterConsumerGroupOffsets(name, Map.of(zero, new OffsetAndMetadata(3))).all().get();
            var offsets = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get();
            equal(offsets.get(zero).offset(), 3L, "altered");
            equal(offsets.get(one).offset(), 10L, "committed");
            admin.deleteConsumerGroupOffsets(name, Set.of(zero)).all().get();
            equal(admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get().keySet(),
                Set.of(one), "partitions with offsets");
            admin.deleteConsumerGroups(List.of(name)).all().get();
            fails(GroupIdNotFoundException.class, () -> admin.deleteConsumerGroups(List.of(name)).all().get());
        }
    }

    // --- admin ---------------------------------------------------------------------------------------------

    static void admin() throws Exception {
        String name = prefix + "-admin";
        try (var admin = admin_()) {
            var made = admin.createTopics(List.of(new NewTopic(name, 2, (short) 1).configs(Map.of("retention.ms", "3600000"))));
            equal(made.numPartitions(name).get(), 2, "partitions made");
            Uuid id = made.topicId(name).get();
            fails(TopicExistsException.class,
                () -> admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get());
            fails(InvalidPartitionsException.class,
                () -> admin.createTopics(List.of(new NewTopic(name + "-none", 0, (short) 1))).all().get());
            fails(InvalidTopicException.class,
                () -> admin.createTopics(List.of(new NewTopic("bad name!", 1, (short) 1))).all().get());
            admin.createTopics(List.of(new NewTopic(name + "-only-tried", 1, (short) 1)),
                new CreateTopicsOptions().validateOnly(true)).all().get();
            admin.createPartitions(Map.of(name, NewPartitions.increaseTo(4))).all().get();
            fails(InvalidPartitionsException.class,
                () -> admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all().get());
            var described = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
            equal(described.partitions().size(), 4, "partitions");
            equal(described.topicId(), id, "topic id");
            equal(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).name(), name, "by id");
            var names = admin.listTopics().names().get();
            if (!names.contains(name) || names.contains(name + "-only-tried")) throw new AssertionError(names.toString());
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("max.message.bytes", "54321"), AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("retention.ms", ""), AlterConfigOp.OpType.DELETE)))).all().get();
            var config = admin.describeConfigs(List.of(resource),
                new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).all().get().get(resource);
            equal(config.get("max.message.bytes").value(), "54321", "max.message.bytes");
            equal(config.get("retention.ms").isDefault(), true, "retention.ms is the default");
            fails(InvalidConfigurationException.class, () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("max.message.bytes", "many"), AlterConfigOp.OpType.SET)))).all().get());
            try (var producer = producer(Map.of("linger.ms", 0))) {
                for (int n = 0; n < 20; n++)
                    producer.send(new ProducerRecord<>(name, 0, BASE_MS + 19 - n, null, bytes("x"))).get();
            }
            var zero = new TopicPartition(name, 0);
            equal(offset(admin, zero, OffsetSpec.earliest()), 0L, "earliest");
            equal(offset(admin, zero, OffsetSpec.latest()), 20L, "latest");
            equal(offset(admin, zero, OffsetSpec.maxTimestamp()), 0L, "max timestamp");
            equal(offset(admin, zero, OffsetSpec.forTimestamp(BASE_MS + 19)), 0L, "for timestamp");
            equal(admin.deleteRecords(Map.of(zero, RecordsToDelete.beforeOffset(8))).lowWatermarks().get(zero).get().lowWatermark(), 8L, "low");
            fails(org.apache.kafka.common.errors.OffsetOutOfRangeException.class,
                () -> admin.deleteRecords(Map.of(zero, RecordsToDelete.beforeOffset(21))).all().get());
            equal(offset(admin, zero, OffsetSpec.earliest()), 8L, "earliest after deletion");
            var cluster = admin.describeCluster();
            int broker = cluster.nodes().get().iterator().next().id();
            if (cluster.clusterId().get() == null || cluster.controller().get() == null) throw new AssertionError("cluster");
            var dirs = admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
            if (dirs.values().stream().noneMatch(dir -> dir.replicaInfos().containsKey(zero)))
                throw new AssertionError("log dirs without the partition: " + dirs);
            admin.describeConfigs(List.of(new ConfigResource(ConfigResource.Type.BROKER, "" + broker))).all().get();
            admin.describeProducers(List.of(zero)).all().get();
            admin.deleteTopics(List.of(name)).all().get();
            fails(UnknownTopicOrPartitionException.class, () -> admin.deleteTopics(List.of(name)).all().get());
            create(name + "-by-id", 1, Map.of());
            Uuid other = admin.describeTopics(List.of(name + "-by-id")).allTopicNames().get().get(name + "-by-id").topicId();
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(other))).all().get();
        }
    }

    static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
    }

    // --- transactions --------------------------------------------------------------------------------------

    static void transactions() throws Exception {
        wholeOrNothing();
        fencing();
        exactlyOnce();
        hanging();
    }

    static void wholeOrNothing() throws Exception {
        String name = prefix + "-whole";
        create(name, 3, Map.of());
        var partitions = List.of(new TopicPartition(name, 0), new TopicPartition(name, 1), new TopicPartition(name, 2));
        try (var admin = admin_(); var producer = transactional(name + "-tx");
             var reader = consumer(null, Map.of("isolation.level", "read_committed"))) {
            reader.assign(partitions);
            reader.seekToBeginning(partitions);
            List<String> wanted = new ArrayList<>();
            int epoch = -1;
            for (int n = 0; n < 6; n++) {
                producer.beginTransaction();
                List<String> values = new ArrayList<>();
                for (int m = 0; m < 30; m++) {
                    values.add(n + "-" + m);
                    producer.send(new ProducerRecord<>(name, m % 3, null, bytes(n + "-" + m)));
                }
                producer.flush();
                var open = admin.describeTransactions(List.of(name + "-tx")).description(name + "-tx").get();
                equal(open.state(), TransactionState.ONGOING, "state");
                equal(open.topicPartitions(), Set.copyOf(partitions), "partitions of the transaction");
                // transaction version 2, which clients know from 4 on: every transaction has an epoch of its own
                if (open.producerEpoch() <= epoch && !IS_3) throw new AssertionError("epoch " + open.producerEpoch());
                epoch = open.producerEpoch();
                equal(reader.poll(Duration.ofMillis(300)).count(), 0, "records of a transaction that is open");
                if (n % 2 == 1) producer.abortTransaction();
                else {
                    producer.commitTransaction();
                    wanted.addAll(values);
                    equal(values(poll(reader, 30)), sorted(values), "records of a transaction, once committed");
                }
            }
            reader.seekToBeginning(partitions);
            equal(values(poll(reader, wanted.size())), sorted(wanted), "committed records");
            equal(reader.poll(Duration.ofMillis(300)).count(), 0, "records after the last");
            var zero = partitions.get(0);
            equal(reader.endOffsets(List.of(zero)).get(zero), 66L, "end: 60 records and 6 markers");
            equal(offset(admin, zero, OffsetSpec.latest()), 66L, "latest");
        }
    }

    static void fencing() throws Exception {
        String name = prefix + "-fenced";
        create(name, 1, Map.of());
        try (var admin = admin_()) {
            var first = transactional(name + "-tx");
            first.beginTransaction();
            first.send(new ProducerRecord<>(name, bytes("of the first"))).get();
            try (var second = transactional(name + "-tx")) {
                second.beginTransaction();
                second.send(new ProducerRecord<>(name, bytes("of the second"))).get();
                second.commitTransaction();
            }
            try {
                first.commitTransaction();
                throw new AssertionError("a fenced producer has committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            } finally {
                first.close(Duration.ZERO);
            }
            var byTool = transactional(name + "-by-tool");
            byTool.beginTransaction();
            byTool.send(new ProducerRecord<>(name, bytes("of the third"))).get();
            admin.fenceProducers(List.of(name + "-by-tool")).all().get();
            try {
                byTool.commitTransaction();
                throw new AssertionError("a producer that was fenced by a tool has committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            } finally {
                byTool.close(Duration.ZERO);
            }
        }
        try (var reader = consumer(null, Map.of("isolation.level", "read_committed"))) {
            reader.assign(List.of(new TopicPartition(name, 0)));
            reader.seekToBeginning(reader.assignment());
            equal(values(poll(reader, 1)), List.of("of the second"), "committed records");
            equal(reader.poll(Duration.ofMillis(300)).count(), 0, "records of the fenced producers");
        }
    }

    static void exactlyOnce() throws Exception {
        String source = prefix + "-source", target = prefix + "-target", name = prefix + "-transform";
        create(source, 2, Map.of());
        create(target, 2, Map.of());
        fill(source, 2, 120);
        var reading = Map.<String, Object>of("isolation.level", "read_committed", "max.poll.records", 20,
            "group.instance.id", "transformer");
        // The first is left in its third transaction, all sent and nothing committed, as if it had been killed.
        var left = transactional(name);
        var leftReading = consumer(name, reading);
        leftReading.subscribe(List.of(source));
        for (int n = 0; n < 3; n++) {
            transform(left, leftReading, target);
            if (n < 2) left.commitTransaction();
        }
        try (var producer = transactional(name); var consumer = consumer(name, reading)) {
            consumer.subscribe(List.of(source));
            for (int done = 40; done < 120; ) {
                done += transform(producer, consumer, target);
                producer.commitTransaction();
            }
            try {
                left.commitTransaction();
                throw new AssertionError("the one that was left has committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            }
        } finally {
            left.close(Duration.ZERO);
            leftReading.close(Duration.ZERO);
        }
        try (var reader = consumer(null, Map.of("isolation.level", "read_committed"))) {
            reader.assign(List.of(new TopicPartition(target, 0), new TopicPartition(target, 1)));
            reader.seekToBeginning(reader.assignment());
            List<String> wanted = new ArrayList<>();
            for (int n = 0; n < 120; n++) wanted.add("" + 2 * n);
            equal(values(poll(reader, 120)), sorted(wanted), "transformed records, each once");
            equal(reader.poll(Duration.ofMillis(300)).count(), 0, "more transformed records");
        }
    }

    static int transform(Producer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer, String target) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        until(() -> {
            consumer.poll(Duration.ofMillis(100)).forEach(found::add);
            return !found.isEmpty();
        }, "records to transform");
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        for (var record : found) {
            int value = Integer.parseInt(text(record.value()));
            producer.send(new ProducerRecord<>(target, record.partition(), null, bytes("" + 2 * value)));
            positions.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
        producer.flush();
        return found.size();
    }

    static void hanging() throws Exception {
        String name = prefix + "-hanging";
        create(name, 1, Map.of());
        var zero = new TopicPartition(name, 0);
        try (var admin = admin_(); var producer = transactional(name + "-tx")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, bytes("x"))).get();
            var state = admin.describeProducers(List.of(zero)).partitionResult(zero).get().activeProducers().get(0);
            equal(state.currentTransactionStartOffset().getAsLong(), 0L, "start of the transaction");
            var listed = admin.listTransactions(new ListTransactionsOptions()
                .filterStates(Set.of(TransactionState.ONGOING)).filterProducerIds(Set.of(state.producerId()))).all().get();
            equal(listed.size(), 1, "listed");
            equal(listed.iterator().next().transactionalId(), name + "-tx", "listed");
            admin.abortTransaction(new AbortTransactionSpec(
                zero, state.producerId(), (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all().get();
            try (var reader = consumer(null, Map.of("isolation.level", "read_committed"))) {
                reader.assign(List.of(zero));
                equal(reader.endOffsets(List.of(zero)).get(zero), 2L, "end after the operator's abort");
                reader.seekToBeginning(reader.assignment());
                equal(reader.poll(Duration.ofMillis(300)).count(), 0, "records of what was aborted");
            }
            try {
                producer.abortTransaction();
            } catch (KafkaException ignored) {  // its transaction is over already
            }
        }
    }

    static KafkaProducer<byte[], byte[]> transactional(String id) {
        var producer = producer(Map.of("transactional.id", id, "max.block.ms", 20_000));
        producer.initTransactions();
        return producer;
    }

    static List<String> values(List<ConsumerRecord<byte[], byte[]>> records) {
        return sorted(records.stream().map(record -> text(record.value())).toList());
    }

    static List<String> sorted(List<String> values) { return values.stream().sorted().toList(); }

    // --- details -------------------------------------------------------------------------------------------

    static Admin admin_() {
        return Admin.create(Map.of("bootstrap.servers", bootstrap, "request.timeout.ms", 10_000, "default.api.timeout.ms", 20_000));
    }

    static void create(String topic, int partitions, Map<String, String> config) throws Exception {
        try (var admin = admin_()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(config))).all().get();
        }
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        settings.putAll(more);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest",
            "enable.auto.commit", false, "heartbeat.interval.ms", 200, "session.timeout.ms", 10_000));
        if (group != null) settings.put("group.id", group);
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void fill(String topic, int partitions, int records) throws Exception {
        try (var producer = producer(Map.of())) {
            for (int n = 0; n < records; n++)
                producer.send(new ProducerRecord<>(topic, n % partitions, BASE_MS + n * 1000L, null, bytes("" + n)));
            producer.flush();
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(Consumer<byte[], byte[]> consumer, int wanted) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        until(() -> {
            consumer.poll(Duration.ofMillis(100)).forEach(found::add);
            return found.size() >= wanted;
        }, wanted + " records");
        return found;
    }

    static void until(BooleanSupplier fact, String what) {
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (!fact.getAsBoolean())
            if (System.nanoTime() > deadline) throw new AssertionError("not in 20 s: " + what);
    }

    interface Call { Object run() throws Exception; }

    static void fails(Class<? extends Exception> with, Call call) throws Exception {
        try {
            call.run();
        } catch (ExecutionException error) {
            if (with.isInstance(error.getCause())) return;
            throw error;
        }
        throw new AssertionError("did not fail with " + with.getSimpleName());
    }

    static void equal(Object seen, Object expected, String what) {
        if (!Objects.equals(seen, expected)) throw new AssertionError(what + ": " + seen + " instead of " + expected);
    }

    static byte[] bytes(String text) { return text.getBytes(StandardCharsets.UTF_8); }

    static String text(byte[] bytes) { return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8); }
}
