// What sarama is tried with.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	. "tailrace/compat/trial"
)

func main() {
	Run(map[string]func(){
		"produce": produce, "consume": consume, "groups": groups, "admin": admin, "transactions": transactions,
	})
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_9_0_0
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func made(topic string) string {
	admin := Must(sarama.NewClusterAdmin([]string{Broker}, config()))
	defer admin.Close()
	Check(admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: Partitions, ReplicationFactor: 1}, false))
	return topic
}

func messages(topic string, count int) (all []*sarama.ProducerMessage) {
	for number := range count {
		all = append(all, &sarama.ProducerMessage{
			Topic: topic, Partition: int32(number % Partitions), Value: sarama.StringEncoder(fmt.Sprint("v", number)),
			Headers: []sarama.RecordHeader{{Key: []byte("n"), Value: fmt.Append(nil, number)}},
		})
	}
	all[0].Key, all[0].Value = sarama.StringEncoder("key of nothing"), nil
	return all
}

func sent(topic string, count int, config *sarama.Config) {
	producer := Must(sarama.NewSyncProducer([]string{Broker}, config))
	defer producer.Close()
	Check(producer.SendMessages(messages(topic, count)))
}

// read returns the records of one topic, by partition, until there are that many.
func read(topic string, wanted int, config *sarama.Config) (all []*sarama.ConsumerMessage) {
	consumer := Must(sarama.NewConsumer([]string{Broker}, config))
	defer consumer.Close()
	for partition := range int32(Partitions) {
		part := Must(consumer.ConsumePartition(topic, partition, sarama.OffsetOldest))
		for range wanted / Partitions {
			select {
			case message := <-part.Messages():
				all = append(all, message)
			case <-Ctx.Done():
				Fail("%d records of %d", len(all), wanted)
			}
		}
		Check(part.Close())
	}
	return all
}

func produce() {
	for _, codec := range []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy,
		sarama.CompressionLZ4, sarama.CompressionZSTD,
	} {
		topic, settings := made(fmt.Sprint(Name, "-", codec)), config()
		settings.Producer.Compression = codec
		sent(topic, 300, settings)
		Equal(len(read(topic, 300, config())), 300, codec.String())
	}
	idempotent := config()
	idempotent.Producer.Idempotent, idempotent.Net.MaxOpenRequests = true, 1
	topic := made(Name + "-idempotent")
	sent(topic, 30, idempotent)
	Equal(len(read(topic, 30, config())), 30, "idempotent")
}

func consume() {
	topic := made(Name)
	sent(topic, 90, config())
	first := read(topic, 90, config())[0]
	Equal(string(first.Key), "key of nothing", "the first key")
	Equal(first.Value == nil, true, "a null value")
	Equal(string(first.Headers[0].Key), "n", "a header")
	consumer := Must(sarama.NewConsumer([]string{Broker}, config()))
	defer consumer.Close()
	sought := Must(consumer.ConsumePartition(topic, 1, 20))
	Equal((<-sought.Messages()).Offset, 20, "after a seek")
}

type reader struct {
	seen *sync.Map
	held *sync.Map
	id   int
}

func (reader) Setup(sarama.ConsumerGroupSession) error { return nil }

func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (each reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	each.held.Store(claim.Partition(), each.id)
	for message := range claim.Messages() {
		each.seen.Store(fmt.Sprint(message.Partition, "/", message.Offset), true)
		session.MarkMessage(message, "")
	}
	return nil
}

func groups() {
	topic, group := made(Name), Name
	sent(topic, 90, config())
	settings := config()
	settings.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	var seen, held sync.Map
	running, stop := context.WithCancel(Ctx)
	var members sync.WaitGroup
	for id := range 2 {
		member := Must(sarama.NewConsumerGroup([]string{Broker}, group, settings))
		members.Add(1)
		go func() {
			defer members.Done()
			for running.Err() == nil {
				Check(member.Consume(running, []string{topic}, reader{&seen, &held, id}))
			}
			Check(member.Close())
		}()
	}
	for count(&seen) < 90 || owners(&held) < 2 {
		Check(Ctx.Err())
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	members.Wait()
	admin := Must(sarama.NewClusterAdmin([]string{Broker}, config()))
	defer admin.Close()
	committed := Must(admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1, 2}}))
	for partition := range int32(Partitions) {
		Equal(committed.GetBlock(topic, partition).Offset, 30, "committed")
	}
	Check(admin.DeleteConsumerGroup(group))
}

func count(seen *sync.Map) (number int) {
	seen.Range(func(any, any) bool { number++; return true })
	return number
}

func owners(held *sync.Map) int {
	ids := map[any]bool{}
	held.Range(func(_, id any) bool { ids[id] = true; return true })
	return len(ids)
}

func admin() {
	topic := made(Name)
	admin := Must(sarama.NewClusterAdmin([]string{Broker}, config()))
	defer admin.Close()
	Check(admin.CreatePartitions(topic, Partitions+2, nil, false))
	Equal(len(Must(admin.DescribeTopics([]string{topic}))[0].Partitions), Partitions+2, "partitions")
	days := "86400000"
	Check(admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"retention.ms": &days}, false))
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}}
	Equal(Must(admin.DescribeConfig(resource))[0].Value, days, "retention.ms")
	sent(topic, 30, config())
	Check(admin.DeleteRecords(topic, map[int32]int64{0: 5}))
	client := Must(sarama.NewClient([]string{Broker}, config()))
	defer client.Close()
	Equal(Must(client.GetOffset(topic, 0, sarama.OffsetOldest)), 5, "log start")
	Equal(Must(client.GetOffset(topic, 0, sarama.OffsetNewest)), 10, "end offset")
	Check(admin.DeleteTopic(topic))
}

func transactions() {
	topic, settings := made(Name), config()
	settings.Producer.Idempotent, settings.Net.MaxOpenRequests = true, 1
	settings.Producer.Transaction.ID = Name
	producer := Must(sarama.NewSyncProducer([]string{Broker}, settings))
	defer producer.Close()
	for _, end := range []func() error{producer.AbortTxn, producer.CommitTxn} {
		Check(producer.BeginTxn())
		Check(producer.SendMessages(messages(topic, 30)))
		Check(end())
	}
	committed := config()
	committed.Consumer.IsolationLevel = sarama.ReadCommitted
	Equal(len(read(topic, 30, committed)), 30, "committed records")
	Equal(len(read(topic, 60, config())), 60, "all records")
}
