package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/onceward/onceward/relay/config"
)

// A configuration is read from a file; a mistyped key says what was meant.
func ExampleLoad() {
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "relay.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			fmt.Println(err)
		}
	}
	const text = `
name: orders
postgres: {dsn: "host=db sslmode=verify-full"}
kafka: {brokers: ["kafka-1:9093"]}
routes: [{topic: "{namespace}.{aggregate_type}"}]
`
	write(text)
	cfg, err := config.Load(file, nil)
	fmt.Println(cfg.SlotName(), cfg.PublicationName(), err)
	write(strings.Replace(text, "brokers", "broker", 1))
	_, err = config.Load(file, nil)
	fmt.Println(strings.TrimPrefix(err.Error(), file+": "))
	// Output:
	// onceward_orders onceward_orders <nil>
	// config: kafka.broker: unknown key; did you mean kafka.brokers?
}
