// What Go's clients do with a broker: CLIENT ACTION ADDRESS TOPIC [COUNT | GROUP], with the actions of clients.py.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/Shopify/sarama"
	"github.com/segmentio/kafka-go"
)

const (
	session   = 3 * time.Second
	heartbeat = 300 * time.Millisecond
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Until SIGTERM.
func running() context.Context {
	running, stop := context.WithCancel(context.Background())
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	go func() {
		<-told
		stop()
	}()
	return running
}

func tellAssigned(partitions []int) {
	sort.Ints(partitions)
	fmt.Print("assigned")
	for _, partition := range partitions {
		fmt.Print(" ", partition)
	}
	fmt.Println()
}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	// Kafka 4 has forgotten the versions of calls that older ones imply.
	config.Version = sarama.V2_1_0_0
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Group.Session.Timeout = session
	config.Consumer.Group.Heartbeat.Interval = heartbeat
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Metadata.RefreshFrequency = time.Second
	return config
}

// A member of a group, with sarama.
type member struct{}

func (member) Setup(session sarama.ConsumerGroupSession) error {
	var partitions []int
	for _, claimed := range session.Claims() {
		for _, partition := range claimed {
			partitions = append(partitions, int(partition))
		}
	}
	tellAssigned(partitions)
	return nil
}

func (member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

var told sync.Mutex

func (member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		told.Lock()
		fmt.Println("record", message.Partition, message.Offset)
		told.Unlock()
		// Committed later, at intervals, and not said when.
		session.MarkMessage(message, "")
	}
	return nil
}

func withSarama(action, address, topic, more string) {
	addresses, config := []string{address}, saramaConfig()
	client, err := sarama.NewClient(addresses, config)
	must(err)
	switch action {
	case "list":
		partitions, err := client.Partitions(topic)
		must(err)
		fmt.Println(topic, len(partitions))
	case "produce":
		count, err := strconv.Atoi(more)
		must(err)
		producer, err := sarama.NewSyncProducerFromClient(client)
		must(err)
		for number := 0; number < count; number++ {
			value := sarama.StringEncoder(strconv.Itoa(number))
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: value})
			must(err)
		}
	case "consume":
		count, err := strconv.Atoi(more)
		must(err)
		consumer, err := sarama.NewConsumerFromClient(client)
		must(err)
		partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
		must(err)
		for ; count > 0; count-- {
			fmt.Println(string((<-partition.Messages()).Value))
		}
	case "member":
		group, err := sarama.NewConsumerGroupFromClient(more, client)
		must(err)
		for running := running(); running.Err() == nil; {
			must(group.Consume(running, []string{topic}, member{}))
		}
		must(group.Close())
	}
}

func withKafkaGo(action, address, topic, more string) {
	background := context.Background()
	switch action {
	case "list":
		partitions, err := kafka.DefaultDialer.LookupPartitions(background, "tcp", address, topic)
		must(err)
		fmt.Println(topic, len(partitions))
	case "produce":
		count, err := strconv.Atoi(more)
		must(err)
		writer := kafka.NewWriter(kafka.WriterConfig{
			Brokers: []string{address}, Topic: topic, BatchTimeout: time.Millisecond,
		})
		for number := 0; number < count; number++ {
			value := []byte(strconv.Itoa(number))
			must(writer.WriteMessages(background, kafka.Message{Value: value}))
		}
		must(writer.Close())
	case "consume":
		count, err := strconv.Atoi(more)
		must(err)
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{address}, Topic: topic, MaxWait: time.Second})
		for ; count > 0; count-- {
			message, err := reader.ReadMessage(background)
			must(err)
			fmt.Println(string(message.Value))
		}
	case "member":
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{address}, Topic: topic, GroupID: more, MaxWait: 300 * time.Millisecond,
			SessionTimeout: session, HeartbeatInterval: heartbeat, RebalanceTimeout: session,
		})
		for running := running(); ; {
			message, err := reader.FetchMessage(running)
			if running.Err() != nil {
				break
			}
			must(err)
			fmt.Println("record", message.Partition, message.Offset)
			must(reader.CommitMessages(running, message))
			fmt.Println("committed", message.Partition, message.Offset)
		}
		must(reader.Close())
	}
}

func main() {
	more := ""
	if len(os.Args) > 5 {
		more = os.Args[5]
	}
	with := map[string]func(action, address, topic, more string){"sarama": withSarama, "kafka-go": withKafkaGo}
	with[os.Args[1]](os.Args[2], os.Args[3], os.Args[4], more)
	if os.Args[2] == "member" {
		fmt.Println("closed")
	}
}
