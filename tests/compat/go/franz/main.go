// What franz-go is tried with.
package main

import (
	"context"
	"fmt"
	"time"

	. "tailrace/compat/trial"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	Run(map[string]func(){
		"produce": produce, "consume": consume, "groups": groups, "admin": admin, "transactions": transactions,
	})
}

func client(options ...kgo.Opt) *kgo.Client {
	return Must(kgo.NewClient(append(options, kgo.SeedBrokers(Broker))...))
}

func made(topic string) string {
	admin := kadm.NewClient(client())
	defer admin.Close()
	Check(Must(admin.CreateTopic(Ctx, Partitions, 1, nil, topic)).Err)
	return topic
}

func records(topic string, count int) (all []*kgo.Record) {
	for number := range count {
		all = append(all, &kgo.Record{
			Topic: topic, Partition: int32(number % Partitions), Value: fmt.Appendf(nil, "v%d", number),
			Headers: []kgo.RecordHeader{{Key: "n", Value: fmt.Append(nil, number)}},
		})
	}
	all[0].Key, all[0].Value = []byte("key of nothing"), nil
	return all
}

func sent(topic string, count int, options ...kgo.Opt) {
	producer := client(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	defer producer.Close()
	Check(producer.ProduceSync(Ctx, records(topic, count)...).FirstErr())
}

// read returns the records of whole topics, each once.
func read(wanted int, options ...kgo.Opt) (all []*kgo.Record) {
	reader := client(append(options, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	defer reader.Close()
	for len(all) < wanted {
		fetches := reader.PollFetches(Ctx)
		Check(fetches.Err())
		all = append(all, fetches.Records()...)
	}
	return all
}

func produce() {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for label, codec := range codecs {
		topic := made(Name + "-" + label)
		sent(topic, 300, kgo.ProducerBatchCompression(codec))
		Equal(len(read(300, kgo.ConsumeTopics(topic))), 300, label)
	}
	plain := made(Name + "-plain")
	sent(plain, 30, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
	large := client()
	defer large.Close()
	Check(large.ProduceSync(Ctx, &kgo.Record{Topic: plain, Value: make([]byte, 900_000)}).FirstErr())
	Equal(len(read(31, kgo.ConsumeTopics(plain))), 31, "with a large record")
}

func consume() {
	topic := made(Name)
	sent(topic, 90)
	for _, record := range read(90, kgo.ConsumeTopics(topic)) {
		if record.Partition == 0 && record.Offset == 0 {
			Equal(string(record.Key), "key of nothing", "the first key")
			Equal(record.Value == nil, true, "a null value")
		}
		Equal(record.Headers[0].Key, "n", "a header")
	}
	from := map[string]map[int32]kgo.Offset{topic: {1: kgo.NewOffset().At(20)}}
	reader := client(kgo.ConsumePartitions(from))
	defer reader.Close()
	Equal(reader.PollFetches(Ctx).Records()[0].Offset, 20, "after a seek")
}

func groups() {
	for _, balancer := range []kgo.GroupBalancer{kgo.RangeBalancer(), kgo.CooperativeStickyBalancer()} {
		group := Name + "-" + balancer.ProtocolName()
		topic := made(group)
		sent(topic, 90)
		settings := []kgo.Opt{
			kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.Balancers(balancer),
			kgo.HeartbeatInterval(200 * time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		}
		first, second := client(settings...), client(settings...)
		members := []*kgo.Client{first, second}
		seen := map[string]bool{}
		for len(seen) < 90 || held(group) != "[1 2]" {
			for _, member := range members {
				short, cancel := context.WithTimeout(Ctx, 100*time.Millisecond)
				for _, record := range member.PollFetches(short).Records() {
					seen[fmt.Sprint(record.Partition, "/", record.Offset)] = true
				}
				cancel()
			}
			Check(Ctx.Err())
		}
		Check(first.CommitUncommittedOffsets(Ctx))
		Check(second.CommitUncommittedOffsets(Ctx))
		first.Close()
		second.Close()
		admin := kadm.NewClient(client())
		lags := Must(admin.Lag(Ctx, group))
		Equal(lags[group].Lag.Total(), 0, "lag")
		admin.Close()
	}
}

// held is how many partitions the members of a group have, in order.
func held(group string) string {
	admin := kadm.NewClient(client())
	defer admin.Close()
	counts := []int{0, 0, 0}
	described := Must(admin.DescribeGroups(Ctx, group))
	for _, member := range described[group].Members {
		assigned, _ := member.Assigned.AsConsumer()
		for _, topic := range assigned.Topics {
			counts[len(topic.Partitions)%3]++
		}
	}
	if counts[1] == 1 && counts[2] == 1 {
		return "[1 2]"
	}
	return fmt.Sprint(counts)
}

func admin() {
	admin := kadm.NewClient(client())
	defer admin.Close()
	topic := made(Name)
	Check(Must(admin.CreatePartitions(Ctx, 2, topic)).Error())
	Equal(len(Must(admin.ListTopics(Ctx, topic))[topic].Partitions), Partitions+2, "partitions")
	days := "86400000"
	changes := []kadm.AlterConfig{{Name: "retention.ms", Value: &days}}
	for _, changed := range Must(admin.AlterTopicConfigs(Ctx, changes, topic)) {
		Check(changed.Err)
	}
	for _, config := range Must(admin.DescribeTopicConfigs(Ctx, topic))[0].Configs {
		if config.Key == "retention.ms" {
			Equal(*config.Value, days, "retention.ms")
		}
	}
	sent(topic, 30)
	ends := Must(admin.ListEndOffsets(Ctx, topic))
	Equal(ends.Offsets().Sorted()[0].At, 10, "end offset")
	Must(admin.DeleteRecords(Ctx, kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: 5}}}))
	first, _ := Must(admin.ListStartOffsets(Ctx, topic)).Lookup(topic, 0)
	Equal(first.Offset, 5, "log start")
	Check(Must(admin.DeleteTopics(Ctx, topic)).Error())
}

func transactions() {
	topic := made(Name)
	producer := client(kgo.TransactionalID(Name), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer producer.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		Check(producer.BeginTransaction())
		Check(producer.ProduceSync(Ctx, records(topic, 30)...).FirstErr())
		Check(producer.EndTransaction(Ctx, end))
	}
	committed := read(30, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	Equal(len(committed), 30, "committed records")
	Equal(len(read(60, kgo.ConsumeTopics(topic))), 60, "all records")
}
