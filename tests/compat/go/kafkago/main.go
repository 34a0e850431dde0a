// What segmentio/kafka-go is tried with.
package main

import (
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	. "tailrace/compat/trial"
)

func main() {
	Run(map[string]func(){"produce": produce, "consume": consume, "groups": groups, "admin": admin})
}

func client() *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(Broker), Timeout: 30 * time.Second}
}

func made(topic string) string {
	request := &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: Partitions, ReplicationFactor: 1}},
	}
	Check(Must(client().CreateTopics(Ctx, request)).Errors[topic])
	return topic
}

func sent(topic string, count int, codec kafka.Compression) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(Broker), Topic: topic, Compression: codec, Balancer: &kafka.RoundRobin{},
		RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond,
	}
	defer writer.Close()
	var all []kafka.Message
	for number := range count {
		all = append(all, kafka.Message{
			Value: fmt.Appendf(nil, "v%d", number), Headers: []kafka.Header{{Key: "n", Value: fmt.Append(nil, number)}},
		})
	}
	all[0].Key, all[0].Value = []byte("key of nothing"), nil
	Check(writer.WriteMessages(Ctx, all...))
}

func read(config kafka.ReaderConfig, wanted int) (all []kafka.Message) {
	config.Brokers, config.MaxWait = []string{Broker}, 200*time.Millisecond
	reader := kafka.NewReader(config)
	defer reader.Close()
	for len(all) < wanted {
		all = append(all, Must(reader.ReadMessage(Ctx)))
	}
	return all
}

func produce() {
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		topic := made(fmt.Sprint(Name, "-", codec))
		sent(topic, 300, codec)
		for partition := range Partitions {
			Equal(len(read(kafka.ReaderConfig{Topic: topic, Partition: partition}, 100)), 100, codec.String())
		}
	}
}

func consume() {
	topic := made(Name)
	sent(topic, 90, 0)
	first := read(kafka.ReaderConfig{Topic: topic, Partition: 0}, 30)[0]
	Equal(string(first.Key), "key of nothing", "the first key")
	Equal(first.Value == nil || len(first.Value) == 0, true, "a null value")
	Equal(first.Headers[0].Key, "n", "a header")
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{Broker}, Topic: topic, Partition: 1, MaxWait: 200 * time.Millisecond,
	})
	defer reader.Close()
	Check(reader.SetOffset(20))
	Equal(Must(reader.ReadMessage(Ctx)).Offset, 20, "after a seek")
}

func groups() {
	topic, group := made(Name), Name
	sent(topic, 90, 0)
	config := kafka.ReaderConfig{
		GroupID: group, GroupTopics: []string{topic}, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: 200 * time.Millisecond,
	}
	Equal(len(read(config, 90)), 90, "records")
	sent(topic, 30, 0)
	Equal(len(read(config, 30)), 30, "records after the committed ones")
	fetched := Must(client().OffsetFetch(Ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: {0, 1, 2}},
	}))
	for _, partition := range fetched.Topics[topic] {
		Equal(partition.CommittedOffset, 40, "committed")
	}
}

func admin() {
	topic := made(Name)
	more := &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: Partitions + 2}}}
	Check(Must(client().CreatePartitions(Ctx, more)).Errors[topic])
	connection := Must(kafka.Dial("tcp", Broker)) // the client would answer out of what it knows
	Equal(len(Must(connection.ReadPartitions(topic))), Partitions+2, "partitions")
	changed := Must(client().AlterConfigs(Ctx, &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
		Configs: []kafka.AlterConfigRequestConfig{{Name: "retention.ms", Value: "86400000"}},
	}}}))
	for _, err := range changed.Errors {
		Check(err)
	}
	Check(Must(client().DeleteTopics(Ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})).Errors[topic])
}
