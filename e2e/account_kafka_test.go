//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What TestAccount does to topics goes past the faults of the network.

func (a *accounting) topicOf(kind string) string { return a.name + "." + kind }

const mixedPartitions = 3

// asks sends a request and returns the first error in what answer makes of it.
func (a *accounting) asks(request kmsg.Request, code func(kmsg.Response) int16) error {
	ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
	defer cancel()
	answer, err := a.kafka.Request(ctx, request)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(code(answer))
}

// makeTopic makes the topic of an aggregate type; false: it is there, or the
// broker is not. One that was removed may have fewer partitions than before.
func (a *accounting) makeTopic(kind string) bool {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = a.topicOf(kind), mixedPartitions, 1
	if a.read.lives[topic.Topic] > 0 {
		topic.NumPartitions = 1 + int32(a.random.IntN(mixedPartitions))
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	if a.asks(request, func(r kmsg.Response) int16 { return r.(*kmsg.CreateTopicsResponse).Topics[0].ErrorCode }) != nil {
		return false
	}
	a.made[kind], a.widths[kind] = true, topic.NumPartitions
	if topic.NumPartitions < mixedPartitions {
		a.nemesis.note(step{at: time.Since(a.nemesis.began), pack: topicShrunk})
	}
	return true
}

// cluster is the id of the Kafka cluster; empty when it cannot be asked.
func (a *accounting) cluster() (id string) {
	_ = a.asks(kmsg.NewPtrMetadataRequest(), func(r kmsg.Response) int16 {
		if known := r.(*kmsg.MetadataResponse).ClusterID; known != nil {
			id = *known
		}
		return 0
	})
	return id
}

// limitTopic sets the largest batch that the topic narrow takes.
func (a *accounting) limitTopic(bytes string) bool {
	config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = "max.message.bytes", &bytes
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeTopic, a.topicOf("narrow")
	resource.Configs = append(resource.Configs, config)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	return a.asks(request, func(r kmsg.Response) int16 { return r.(*kmsg.IncrementalAlterConfigsResponse).Resources[0].ErrorCode }) == nil
}

// growTopic gives the topic wide so many partitions.
func (a *accounting) growTopic(partitions int32) bool {
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = a.topicOf("wide"), partitions
	request := kmsg.NewPtrCreatePartitionsRequest()
	request.Topics = append(request.Topics, topic)
	return a.asks(request, func(r kmsg.Response) int16 { return r.(*kmsg.CreatePartitionsResponse).Topics[0].ErrorCode }) == nil
}

// removeTopic removes a late topic, after what is in it was read: only at a quiet
// moment, because what is published between the two would be taken for lost.
func (a *accounting) removeTopic() {
	kind := kindsLate[a.random.IntN(len(kindsLate))]
	name := a.topicOf(kind)
	if a.deleteTopic(name) == nil {
		delete(a.made, kind)
		a.read.lives[name]++
		a.nemesis.note(step{at: time.Since(a.nemesis.began), pack: topicRemoved})
	}
}

func (a *accounting) deleteTopic(name string) error {
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = &name
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.TopicNames, request.Topics = []string{name}, append(request.Topics, topic)
	return a.asks(request, func(r kmsg.Response) int16 { return r.(*kmsg.DeleteTopicsResponse).Topics[0].ErrorCode })
}

// removeTopics leaves the shared cluster as it was.
func (a *accounting) removeTopics() {
	a.heal()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, kind := range slices.Concat(kindsThere, kindsLate, []string{kindSecond}) {
		if kind == "order" {
			continue // the environment's own
		}
		name := a.topicOf(kind)
		topic := kmsg.NewDeleteTopicsRequestTopic()
		topic.Topic = &name
		request := kmsg.NewPtrDeleteTopicsRequest()
		request.TopicNames, request.Topics = []string{name}, append(request.Topics, topic)
		_, err := a.kafka.Request(ctx, request)
		require.NoError(a.t, err, fmt.Sprint("delete topic ", name))
	}
	a.kafka.Close()
}
