package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/onceward/onceward/relay"
)

// What a relay would refuse at its start names the fields.
func ExampleConfig_Validate() {
	cfg := relay.Default()
	cfg.Name = "Orders!"
	cfg.Postgres.DSNFile = "/run/secrets/orders-dsn"
	cfg.Routes = []relay.RouteConfig{{Topic: "{namespace}.{aggregate_type}"}}
	fmt.Println(cfg.Validate())
	// Output:
	// config: name: "Orders!": want 1 to 54 characters of a-z, 0-9 and _
	// config: kafka.brokers: empty; list at least one host:port
}

// A program that is a relay beside whatever else it is. Another one with the same
// configuration stands by until this one's slot is free.
func ExampleNew() {
	cfg := relay.Default()
	cfg.Name = "orders"
	cfg.Postgres.DSNFile = "/run/secrets/orders-dsn"
	cfg.Kafka.Brokers = []string{"kafka-1:9093", "kafka-2:9093"}
	cfg.Routes = []relay.RouteConfig{{Topic: "{namespace}.{aggregate_type}"}}

	r, err := relay.New(cfg, slog.Default())
	if err != nil {
		fmt.Println(err) // it names the field
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := r.Run(ctx); err != nil {
		fmt.Println(err)
	}
}
