import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.*;

/**
 * Kafka Streams: `java WordCount BOOTSTRAP NAME STATE` counts the words of NAME-in, exactly once, into NAME-out.
 *
 * Words are keys only after a repartition topic, and counts outlive the process in a changelog topic alone: the store
 * is in memory. Nothing is cached, so each word's counts come out as 1, 2, 3, ... Whenever all its tasks run and the
 * table is not the one it last printed, prints `table RESTORED {WORD=COUNT, ...}`, with the records that were restored
 * since the process began. Runs until it is killed.
 */
public final class WordCount {
    public static void main(String[] arguments) throws Exception {
        String name = arguments[1];
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(name + "-in", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(name + "-out", Produced.with(Serdes.String(), Serdes.String()));
        Properties properties = new Properties();
        properties.put("application.id", name);
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("state.dir", arguments[2]);
        properties.put("processing.guarantee", "exactly_once_v2");
        properties.put("commit.interval.ms", "200");
        properties.put("num.stream.threads", "2");
        properties.put("statestore.cache.max.bytes", "0");
        // One that is killed within a transaction holds the next one up for no longer than these.
        properties.put("consumer.session.timeout.ms", "6000");
        properties.put("consumer.heartbeat.interval.ms", "1500");
        properties.put("producer.transaction.timeout.ms", "8000");
        properties.put("consumer.max.poll.records", "200");
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.ERROR) Runtime.getRuntime().halt(1);
        });
        AtomicLong restored = new AtomicLong();
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            @Override public void onRestoreStart(TopicPartition changelog, String store, long from, long to) {}
            @Override public void onBatchRestored(TopicPartition changelog, String store, long to, long records) {}
            @Override public void onRestoreEnd(TopicPartition changelog, String store, long records) {
                restored.addAndGet(records);
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
        streams.start();
        Map<String, Long> before = null;
        for (;; Thread.sleep(200)) {
            Map<String, Long> table = new TreeMap<>();
            try (KeyValueIterator<String, Long> all = streams.store(StoreQueryParameters.fromNameAndType(
                    "counts", QueryableStoreTypes.<String, Long>keyValueStore())).all()) {
                all.forEachRemaining(entry -> table.put(entry.key, entry.value));
            } catch (InvalidStateStoreException notAllAreRunning) {
                continue;
            }
            if (streams.state() == KafkaStreams.State.RUNNING && !table.equals(before)) {
                System.out.println("table " + restored + " " + table);
                before = table;
            }
        }
    }
}
