package publisher_test

import (
	"errors"
	"fmt"

	"github.com/onceward/onceward/publisher"
)

// The first route that matches decides; what no route may write is an error that says
// what to do.
func ExampleConfig_TopicOf() {
	cfg := publisher.Config{
		Brokers: []string{"kafka:9092"},
		Routes: []publisher.Route{
			{Match: publisher.Match{EventType: "*Audit"}, Topic: "audit"},
			{Topic: "{namespace}.{aggregate_type}"},
		},
		Topics: publisher.Topics{Allow: []string{"audit", "shop.*"}},
	}
	for _, event := range [][3]string{{"shop", "order", "OrderPaid"}, {"shop", "order", "LoginAudit"}, {"bank", "account", "Opened"}} {
		topic, err := cfg.TopicOf(event[0], event[1], event[2])
		var route *publisher.RouteError
		if errors.As(err, &route) {
			fmt.Println(route.Topic, route.Reason)
			continue
		}
		fmt.Println(topic)
	}
	// Output:
	// shop.order
	// audit
	// bank.account is not in the allow-list
}

// A key is in the partition that Java's client would write it to.
func ExamplePartition() {
	for _, key := range []string{"order-1", "order-2", "order-1"} {
		fmt.Println(key, publisher.Partition([]byte(key), 12))
	}
	// Output:
	// order-1 10
	// order-2 3
	// order-1 10
}
